"""The target writes text with distributions that are its own, goes on, and stops when told."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from parlay.decoding.span import Span
from parlay.errors import BadRequest, ParlayError
from parlay.llama.context import Context
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay_train.corpus import Corpus
from parlay_train.frame import Template
from parlay_train.writers import WritingJob, write
from parlay_train.writing import WritingSettings, runs_in_circles
from parlay_train.writing_prompts import Shares

SETTINGS = WritingSettings(
    slots=8,
    context_size=128,
    max_user_tokens=8,
    max_answer_tokens=24,
    shares=Shares(found=0.0),  # to find texts takes every process seconds
)


def test_every_kept_distribution_is_the_targets_own(tiny_llama: Path, written: Corpus) -> None:
    texts = [text for text in written.texts() if len(text.tokens) < 200][:4]
    with Model(tiny_llama, ModelSettings()) as model:
        context = Context(model, ContextSettings(context_size=256, n_outputs=256))
        for text in texts:
            context.clear(0)
            n = len(text.answer)
            rows = context.decode([Span(0, 0, text.tokens[:-1].tolist(), n)])[0].astype(np.float64)
            logprobs = rows - np.log(np.exp(rows).sum(-1, keepdims=True))
            kept = np.take_along_axis(logprobs, text.top_ids.astype(np.int64), -1)
            assert np.abs(kept - text.top_logprobs).max() < 0.05
            tail = np.log1p(-np.exp(kept).sum(-1))
            assert np.abs(tail - text.tail_logprob).max() < 0.1
        context.close()


def test_a_greedy_answer_takes_the_likeliest_token(written: Corpus) -> None:
    greedy = [text for text in written.texts() if text.temperature == 0]
    drawn = [text for text in written.texts() if text.temperature == 1]
    assert greedy and drawn
    assert all((text.answer == text.top_ids[:, 0]).all() for text in greedy)
    assert any((text.answer != text.top_ids[:, 0]).any() for text in drawn)


def test_a_prompt_is_framed_as_the_chat_template_frames_it(
    tiny_llama: Path, written: Corpus
) -> None:
    with Model(tiny_llama, ModelSettings()) as model:
        frame = Template(model).frame
    for text in written.texts():
        prompt = tuple(text.prompt.tolist())
        assert prompt[: len(frame.opening)] == frame.opening
        assert prompt[-len(frame.closing) :] == frame.closing


def test_the_same_seed_writes_the_same_text(tiny_llama: Path, tmp_path: Path) -> None:
    texts = []
    for name in ("a", "b"):
        write(
            WritingJob(tiny_llama, tmp_path / name, n_tokens=300, settings=SETTINGS), lambda _: None
        )
        texts.append([text.tokens.tolist() for text in Corpus(tmp_path / name).texts()])
    assert texts[0] == texts[1]


def test_writing_goes_on_with_other_text(tiny_llama: Path, tmp_path: Path) -> None:
    for _ in range(2):
        write(WritingJob(tiny_llama, tmp_path, n_tokens=300, settings=SETTINGS), lambda _: None)
    first, second = ([t.tokens.tolist() for t in s.texts()] for s in Corpus(tmp_path).shards())
    assert first != second


def test_what_was_written_before_an_interrupt_is_kept(tiny_llama: Path, tmp_path: Path) -> None:
    def interrupt(n: int) -> None:
        if n > 200:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(WritingJob(tiny_llama, tmp_path, n_tokens=10**9, settings=SETTINGS), interrupt)
    assert Corpus(tmp_path).n_generated > 200


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The tokens of each of several writers, once they have been started."""
    spawn = multiprocessing.get_context("spawn")
    made, found = spawn.Array, list[Any]()

    def kept(kind: str, n: int) -> Any:
        found.append(made(kind, n))
        return found[0]

    monkeypatch.setattr(spawn, "Array", kept)
    return found


def test_two_processes_write_into_one_corpus(
    tiny_llama: Path, tmp_path: Path, counts: list[Any]
) -> None:
    seen: list[int] = []

    def watch(n: int) -> None:
        """Whoever began first may be done before the other has begun: that one is waited for."""
        seen.append(n)
        while not all(counts[0]) and multiprocessing.active_children():
            time.sleep(0.01)

    job = WritingJob(tiny_llama, tmp_path, n_tokens=1000, n_writers=2, settings=SETTINGS)
    write(job, watch)
    names = {path.name.partition("-")[0] for path in Corpus(tmp_path).paths}
    assert names == {"writer0", "writer1"}
    assert Corpus(tmp_path).n_generated >= 1000
    assert seen == sorted(seen)


def test_a_writer_that_dies_without_a_word_is_reported_and_the_text_of_others_kept(
    tiny_llama: Path, tmp_path: Path, counts: list[Any]
) -> None:
    def kill_one(_: int) -> None:
        children = multiprocessing.active_children()
        if all(counts[0]) and len(children) == 2:  # the one that lives has text to keep
            os.kill(children[0].pid or 0, signal.SIGKILL)

    job = WritingJob(tiny_llama, tmp_path, n_tokens=10**9, n_writers=2, settings=SETTINGS)
    with pytest.raises(ParlayError, match="ended by signal 9 without saying why"):
        write(job, kill_one)
    assert multiprocessing.active_children() == []
    assert Corpus(tmp_path).n_generated > 0


def test_a_prompt_file_is_used_and_a_bad_one_refused(tiny_llama: Path, tmp_path: Path) -> None:
    good = tmp_path / "good.jsonl"
    good.write_text(
        '{"prompt": "the and in", "time": 3}\n{"messages": [{"role": "user", "content": "on"}]}\n'
    )
    only = replace(SETTINGS, shares=Shares(given=1.0), follow_ups=0.0)
    job = WritingJob(tiny_llama, tmp_path / "c", n_tokens=200, prompts=good, settings=only)
    write(job, lambda _: None)
    with Model(tiny_llama, ModelSettings()) as model:
        template = Template(model)
        expected = {tuple(template.user("the and in")), tuple(template.user("on"))}
    assert {tuple(t.prompt.tolist()) for t in Corpus(tmp_path / "c").texts()} <= expected
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"question": "?"}\n')
    with pytest.raises(BadRequest, match="line 1"):
        write(WritingJob(tiny_llama, tmp_path / "d", n_tokens=9, prompts=bad), lambda _: None)


@pytest.mark.parametrize(
    ("tokens", "circles"),
    [([1, 2, 3] * 30, True), (list(range(90)), False), ([5] * 64, True), ([5] * 20, False)],
)
def test_a_text_that_only_repeats_itself_is_noticed(tokens: list[int], circles: bool) -> None:
    assert runs_in_circles(tokens) is circles
