"""Written text survives the disk: round trip, growth, resume, and clear refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parlay.errors import BadRequest
from parlay_train.corpus import Corpus, CorpusHeader, CorpusText, CorpusWriter

HEADER = CorpusHeader("target.gguf", "abc", n_vocab=300, top_k=4)


def text(seed: int, n_prompt: int = 5, n_answer: int = 7) -> CorpusText:
    rng = np.random.default_rng(seed)
    return CorpusText(
        tokens=rng.integers(0, 300, n_prompt + n_answer).astype(np.int32),
        answer_start=n_prompt,
        temperature=[0.0, 0.7][seed % 2],
        top_ids=rng.integers(0, 300, (n_answer, 4)).astype(np.uint16),
        top_logprobs=-rng.random((n_answer, 4)).astype(np.float16),
        tail_logprob=-rng.random(n_answer).astype(np.float16),
    )


def same(a: CorpusText, b: CorpusText) -> bool:
    arrays = ("tokens", "top_ids", "top_logprobs", "tail_logprob")
    plain = (a.answer_start, round(a.temperature, 4)) == (b.answer_start, round(b.temperature, 4))
    return plain and all(np.array_equal(getattr(a, n), getattr(b, n)) for n in arrays)


def test_texts_come_back_as_they_were_written(tmp_path: Path) -> None:
    written = [text(seed, n_prompt=1 + seed, n_answer=3 + seed) for seed in range(9)]
    writer = CorpusWriter(tmp_path, HEADER)
    for each in written:
        writer.add(each)
    writer.flush()
    corpus = Corpus(tmp_path)
    assert corpus.header == HEADER
    assert corpus.n_generated == writer.n_generated == sum(len(t.answer) for t in written)
    assert all(same(a, b) for a, b in zip(corpus.texts(), written, strict=True))


def test_a_writer_opened_again_goes_on_and_two_writers_share_a_folder(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("a", 2), ("b", 3)):
        writer = CorpusWriter(tmp_path, HEADER, name)
        writer.add(text(seed))
        writer.flush()
    names = [path.name for path in Corpus(tmp_path).paths]
    assert names == ["a-00001.npz", "a-00002.npz", "b-00001.npz"]
    assert len(list(Corpus(tmp_path).texts())) == 3


def test_a_prompt_is_on_one_side_only(tmp_path: Path) -> None:
    writer = CorpusWriter(tmp_path, HEADER)
    for seed in range(400):
        writer.add(text(seed))
        again = text(seed)
        writer.add(replace(again, tokens=np.append(again.prompt, text(seed + 1000).answer)))
    writer.flush()
    corpus = Corpus(tmp_path)
    trained = {t.prompt.tobytes() for t in corpus.texts("train")}
    held = {t.prompt.tobytes() for t in corpus.texts("held_out")}
    assert held and not trained & held
    assert len(trained) + len(held) == 400


def test_nothing_left_out_is_kept_as_a_finite_tail(tmp_path: Path) -> None:
    none_left = replace(text(1), tail_logprob=np.full(7, -np.inf, np.float16))
    writer = CorpusWriter(tmp_path, HEADER)
    writer.add(none_left)
    writer.flush()
    (found,) = Corpus(tmp_path).texts()
    assert np.isfinite(found.tail_logprob).all()


def test_another_target_is_refused(tmp_path: Path) -> None:
    CorpusWriter(tmp_path, HEADER)
    with pytest.raises(BadRequest, match="another target"):
        CorpusWriter(tmp_path, replace(HEADER, fingerprint="def"))


def test_a_missing_or_damaged_corpus_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="no written text"):
        Corpus(tmp_path / "none")
    CorpusWriter(tmp_path, HEADER)
    (tmp_path / "text-00001.npz").write_bytes(b"PK not really")
    with pytest.raises(BadRequest, match="damaged"):
        list(Corpus(tmp_path).texts())
