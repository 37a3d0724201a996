"""When free proposers are asked: a search is a small bet, and has a bound of its own.

Knows what searches take and which of them were in vain; neither texts nor drafts. Where searches
are cheap beside a pass, everybody is searched for always. Elsewhere each pass gives a small part of
its time back to two allowances: one for texts that nothing is known of, in turn, one for those that
seem to repeat themselves, whose drafts were right of late whether anybody bet on them or not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from parlay.control.choice import View
from parlay.control.coming import Pass, Text
from parlay.decoding.round import Round

CHEAP = 0.01  # of a plain pass: searches that take no more are always made
SEARCH = 0.004  # of all time, for searches in vain
VAIN, HOPED = 0.2, 0.8  # passes at once: of texts that nothing is known of, and of hopeful ones
HOPEFUL = 0.7  # of late drafts that were right: two in a row from nothing
RATE = 0.25  # what one search moves of what searches are believed to take

# Given hopeful answers and the seconds of searching for them: is it worth it?
Wakes = Callable[[Sequence[int], float], bool]


class Searching:
    """Of one controller."""

    def __init__(self) -> None:
        self.each_s = 0.0  # of one answer's search
        self.vain_s = self.hoped_s = 0.0  # taken of the two allowances
        self.needs = 0.0  # plain passes that the last vetoed bet might have lost

    def due(
        self, views: Sequence[View], texts: Sequence[Text], now: Pass, wakes: Wakes
    ) -> list[bool]:
        """For whom they are asked before the next pass."""
        n, each_s = len(texts), self.each_s
        if n * each_s <= CHEAP * now.plain_s:
            return [True] * n
        for text, view in zip(texts, views, strict=True):
            text.waits = 0 if view.searched else text.waits + 1
        found = [False] * n
        hopeful = [i for i, text in enumerate(texts) if text.hope >= HOPEFUL]
        search_s = len(hopeful) * each_s
        if hopeful and self.hoped_s + search_s <= HOPED * now.plain_s and wakes(hopeful, search_s):
            for i in hopeful:
                found[i] = True
        left_s = VAIN * now.plain_s - self.vain_s
        for i in sorted(range(n), key=lambda i: -texts[i].waits):
            if not found[i] and left_s >= each_s:
                found[i], left_s = True, left_s - each_s
        return found

    def observe(
        self,
        made: Pass,
        places: Sequence[int],
        rounds: Sequence[Round],
        texts: Mapping[int, Text],
    ) -> None:
        """What came of the searches for a pass, and of those beside it."""
        timing, betting = rounds[0].timing, any(r.n_drafted + r.n_dropped for r in rounds)
        back_s = SEARCH * timing.total_s
        if betting:  # what a bet won is worth as much searching
            n_ahead = sum([r.n_generated - 1 for r in rounds])
            back_s += max(0.0, made.plain_s * (1 + n_ahead / len(rounds)) - timing.total_s)
            self.needs = 0.0
        self.vain_s = max(0.0, self.vain_s - back_s)
        self.hoped_s = max(0.0, self.hoped_s - back_s)
        n = sum(made.was_searched)
        if n and not betting:
            each_s = timing.draft_s / n
            self.each_s += (each_s - self.each_s) * (RATE if self.each_s else 1.0)
            self.needs = 0.0 if made.vetoed is None else made.vetoed.worst
        for i, r in zip(places, rounds, strict=True):
            text = texts.get(r.seq_id)
            if text is None or text.answer != r.answer:
                continue
            if made.was_searched[i] and not betting:
                if text.hope >= HOPEFUL:
                    self.hoped_s += timing.draft_s / n
                else:
                    self.vain_s += timing.draft_s / n
            if r.agreed:
                text.hope += 0.5 * (any(r.agreed.values()) - text.hope)
