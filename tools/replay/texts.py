"""Recordings of made-up texts: ones that repeat themselves, and ones that mislead.

Knows the free proposers, which are asked at every position as in an answer; no model, no costs.
Deterministic: the same arguments give the same recording.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from parlay.proposers.lookup import Lookup
from parlay.proposers.prediction import PREDICTION, PredictionProposer
from parlay.proposers.proposer import Ask, Proposer
from tools.replay.recording import RecordedOffer, Recording
from tools.replay.world import MAX_WINDOW

_N_VOCAB = 30_000


def recorded(name: str, prompt: Sequence[int], answer: Sequence[int]) -> Recording:
    """What the free proposers would have drafted at every position of this answer."""
    proposers: list[Proposer] = [Lookup()]
    offers = {each.name: _offers(each, [*prompt], answer) for each in proposers}
    return Recording(name, "made", len(prompt), "length", offers)


def predicted(n_tokens: int, *, right: bool, seed: int = 0) -> Recording:
    """An answer whose client sent a text along that it expects: this very one, or another."""
    rng = random.Random(seed)
    answer, other = _random_tokens(rng, n_tokens + 1), _random_tokens(rng, n_tokens + 1)
    expected = tuple(answer if right else other)
    offers = {PREDICTION: _offers(PredictionProposer(), [0], answer, expected)}
    return Recording(f"predicted-{seed}-{right}", "made", 1, "length", offers)


def _offers(
    proposer: Proposer,
    tokens: list[int],
    answer: Sequence[int],
    expected: tuple[int, ...] = (),
) -> tuple[RecordedOffer, ...]:
    found = []
    n_prompt = len(tokens)
    tokens.append(answer[0])  # the prompt's own token: position 0 comes after it
    for at in range(1, len(answer)):
        ask = Ask(0, tokens, MAX_WINDOW, n_prompt=n_prompt, expected=expected)
        (draft,) = proposer.draft([ask])
        found.append(RecordedOffer(_n_right(draft.tokens, answer[at:]), draft.confidence))
        tokens.append(answer[at])
    return tuple(found)


def repeating(n_tokens: int, period: int, n_prompt: int = 100, seed: int = 0) -> Recording:
    """An answer that repeats its first `period` tokens for ever: in the end all drafts hold."""
    rng = random.Random(seed)
    cycle = _random_tokens(rng, period)
    answer = [cycle[i % period] for i in range(n_tokens + 1)]
    return recorded(f"repeating-{period}", _random_tokens(rng, n_prompt), answer)


def copying(n_tokens: int, run: int, n_prompt: int = 400, seed: int = 0) -> Recording:
    """An answer of passages of the prompt, `run` tokens each, with a new token between them."""
    rng = random.Random(seed)
    prompt, answer = _random_tokens(rng, n_prompt), list[int]()
    while len(answer) <= n_tokens:
        at = rng.randrange(n_prompt - run)
        answer += [*prompt[at : at + run], rng.randrange(_N_VOCAB)]
    return recorded(f"copying-{run}", prompt, answer[: n_tokens + 1])


def misleading(n_tokens: int, sure: float = 0.97, depth: int = MAX_WINDOW) -> Recording:
    """Every proposer is sure at every position, and never right."""
    wrong = (RecordedOffer(0, (sure,) * depth),) * n_tokens
    return Recording(
        f"misleading-{sure:g}", "made", 100, "length", {"ngram": wrong, "suffix": wrong}
    )


def turning(recording: Recording, n_right: int) -> Recording:
    """The same, but after so many right tokens every draft is wrong."""
    n_seen, at = 0, 0
    offers = recording.offers["suffix"]
    while at < len(offers) and n_seen < n_right:
        n_seen += offers[at].n_accepted > 0
        at += 1

    def turned(of: tuple[RecordedOffer, ...]) -> tuple[RecordedOffer, ...]:
        cut = (replace(o, n_accepted=min(o.n_accepted, at - i)) for i, o in enumerate(of[:at]))
        return (*cut, *(replace(o, n_accepted=0) for o in of[at:]))

    name = f"{recording.id}-turning-{n_right}"
    return replace(recording, id=name, offers={s: turned(o) for s, o in recording.offers.items()})


def _n_right(drafted: Sequence[int], text: Sequence[int]) -> int:
    pairs = enumerate(zip(drafted, text, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(drafted), len(text)))


def _random_tokens(rng: random.Random, n: int) -> list[int]:
    return [rng.randrange(_N_VOCAB) for _ in range(n)]
