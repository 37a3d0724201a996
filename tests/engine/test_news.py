"""News: every proposer hears of a text what its kind wants to hear, whoever fails before it."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest

from parlay.decoding.draft import Draft
from parlay.engine.faults import Faults
from parlay.engine.news import News
from parlay.engine.request import Request
from parlay.engine.sequence import Sequence
from parlay.proposers.proposer import Ask, Proposer, Worth
from parlay.proposers.suffix import SuffixProposer
from tests.engine.rig import Letters


class Hearing(Proposer):
    """Keeps the names of what it was told; of some of it, it wants to hear no more."""

    def __init__(self, name: str, fails: bool = False) -> None:
        self.name = name
        self.heard: list[str] = []
        self._fails = fails

    def _hear(self, what: str) -> None:
        self.heard.append(what)
        if self._fails:
            raise RuntimeError("not now")

    def draft(self, asks: Seq[Ask], worth: Worth | None = None) -> list[Draft]:
        raise AssertionError("nobody asks for a draft here")

    def open(self, seq_id: int, tokens: Seq[int], n_kept: int, owner: str = "") -> None:
        self._hear("open")

    def meanwhile(self, ask: Ask, draft: Seq[int]) -> None:
        self._hear("meanwhile")

    def finish(self, seq_id: int, tokens: Seq[int]) -> None:
        self._hear("finish")

    def cut(self, seq_id: int, keep: int, gone: int) -> None:
        self._hear("cut")


def text(
    *tokens: int, proposers: tuple[str, ...] | None = None, window: int | None = None
) -> Sequence:
    request = Request(tokens, 16, proposers=proposers, window=window)
    return Sequence(request, Letters(), frozenset(), lambda _seq, _pieces: None)


def told(seq: Sequence, *proposers: Proposer) -> None:
    news = News({each.name: each for each in proposers}, Faults())
    news.begin(seq)
    news.read(seq)
    news.prepare(seq, (5,), 4)
    news.shift(0, 1, 2)
    news.finish(seq)


def test_whoever_fails_keeps_nobody_else_from_hearing(caplog: pytest.LogCaptureFixture) -> None:
    broken, other = Hearing("broken", fails=True), Hearing("other")
    told(text(1, 2), broken, other)
    assert broken.heard == other.heard == ["open", "meanwhile", "meanwhile", "cut", "finish"]
    assert "the proposer broken failed to begin" in caplog.text


def test_a_proposer_that_indexes_texts_knows_the_prompt_once_it_is_read() -> None:
    suffix, seq = SuffixProposer(), text(*range(10, 20), *range(10, 15))
    news = News({"suffix": suffix}, Faults())
    news.begin(seq)
    news.read(seq)
    (draft,) = suffix.draft([Ask(seq.seq_id, seq.tokens, 3)])
    assert draft.tokens == (15, 16, 17)
