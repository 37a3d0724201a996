"""Verdicts on pairs: from files alone, with every difference named."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from parlay.errors import ModelFileError, ParlayError
from parlay.llama.model import Model
from parlay.llama.settings import ModelSettings
from parlay.pairing.alignment import check_pair, compare, judge
from parlay.pairing.samples import SAMPLES
from parlay.pairing.tokenizer import Tokenizer, read_tokenizer
from tests import tiny_models
from tests.planning.headers import SMALL, write_dense


@pytest.fixture(scope="module")
def tokenizer(tiny_llama: Path) -> Tokenizer:
    return read_tokenizer(tiny_llama)


def test_the_same_tokenizer_is_identical(tiny_llama: Path, tiny_drafter: Path) -> None:
    found = check_pair(tiny_llama, tiny_drafter)
    assert (found.verdict, found.differences) == ("identical", ())
    assert found.target.fingerprint == found.drafter.fingerprint
    assert found.trip.n_samples == len(SAMPLES)
    assert found.trip.changed_by_target == ()


def test_another_size_within_the_padding_is_compatible(tiny_llama: Path, tiny_folder: Path) -> None:
    padded = tiny_models.write_llama(
        tiny_folder / "padded.gguf", vocab=tiny_models.OTHER_SIZE, n_layers=1
    )
    found = check_pair(tiny_llama, padded)
    assert found.verdict == "compatible"
    assert {d.what for d in found.differences} >= {"size", "merges"}
    assert all(d.harmless for d in found.differences)
    assert "never drafted" in (found.differences[0].harmless or "")


def test_other_texts_are_incompatible_and_shown(tiny_llama: Path, tiny_other_vocab: Path) -> None:
    found = check_pair(tiny_llama, tiny_other_vocab)
    tokens = [d for d in found.differences if d.what == "token"]
    assert found.verdict == "incompatible"
    assert tokens[0].harmless is None
    assert tokens[0].detail == "268 is 'an' and 'ou'"


def test_the_verdict_is_the_engine_s(tiny_llama: Path, tiny_folder: Path) -> None:
    """What is called compatible here must load, and what is not must not."""
    others = [
        tiny_models.write_llama(tiny_folder / f"verdict-{i}.gguf", vocab=vocab, n_layers=1)
        for i, vocab in enumerate((tiny_models.OTHER_SIZE, tiny_models.OTHER_TEXTS))
    ]
    with Model(tiny_llama, ModelSettings()) as target:
        for other in others:
            with Model(other, ModelSettings()) as drafter:
                refused = target.vocabulary.first_difference(drafter.vocabulary) is not None
            assert (check_pair(tiny_llama, other).verdict == "incompatible") == refused


CHANGES = {
    "type": {"kind": "llama"},
    "pre-tokenizer": {"pre": "qwen2"},
    "merges": {"merges": (b"a b",)},
    "eos token": {"special": {"bos": 1, "eos": 0}},
    "added tokens": {"types": (1,) * 10},
    "add_bos_token": {"flags": {"add_bos_token": True}},
    "chat template": {"chat_template": None},
}


@pytest.mark.parametrize("what", CHANGES)
def test_each_difference_is_named(tokenizer: Tokenizer, what: str) -> None:
    found = compare(tokenizer, replace(tokenizer, **CHANGES[what]))  # type: ignore[arg-type]
    assert [d.what for d in found] == [what]
    assert judge(found) == ("incompatible" if what == "type" else "compatible")


def test_many_differing_tokens_are_counted_not_listed(tokenizer: Tokenizer) -> None:
    found = compare(tokenizer, replace(tokenizer, tokens=tuple(reversed(tokenizer.tokens))))
    assert len(found) == 6
    assert "in all" in found[-1].detail


def test_far_more_tokens_are_incompatible(tokenizer: Tokenizer) -> None:
    more = replace(tokenizer, tokens=tokenizer.tokens + (b"x",) * 129)
    assert judge(compare(tokenizer, more)) == "incompatible"


def test_a_fingerprint_depends_on_all_but_the_template(tokenizer: Tokenizer) -> None:
    others = [replace(tokenizer, **change) for change in CHANGES.values()]  # type: ignore[arg-type]
    prints = [other.fingerprint for other in others]
    assert prints.pop() == tokenizer.fingerprint  # the template's
    assert tokenizer.fingerprint not in prints
    assert len(set(prints)) == len(prints)


def test_a_file_without_a_tokenizer_is_refused(tmp_path: Path, tiny_llama: Path) -> None:
    bare = write_dense(tmp_path / "bare.gguf", "llama", **SMALL, kind="F32")
    with pytest.raises(ModelFileError, match="no tokenizer"):
        check_pair(tiny_llama, bare)


def test_a_missing_file_is_one_line(tiny_llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ParlayError, match="does not exist"):
        check_pair(tiny_llama, tmp_path / "none.gguf")


@pytest.mark.weights
def test_a_real_pair_is_checked_in_seconds(smollm2: Path) -> None:
    started = time.thread_time()
    found = check_pair(smollm2, smollm2)
    assert found.verdict == "identical"
    assert time.thread_time() - started < 10
    assert (len(found.target.tokens), len(found.target.added)) == (49152, 17)
    assert found.trip.changed_by_target == ()
