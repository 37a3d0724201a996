"""Rules that other engines use to set the window, for comparison in a replay only.

Written from what those rules are known to do; no part of the runtime uses them. Each has one
proposer, as there, and decodes plainly where that one has nothing to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from parlay.control.controller import Choice, Controller, FixedWindow, NeverRests, View, plain
from parlay.control.prices.cost import CostTable
from parlay.decoding.draft import Draft, Look, Shown
from parlay.decoding.round import Fallback, Round

MAX_WINDOW = 16


class WindowRule(Protocol):
    """A window for the coming round, and what the last one taught."""

    def window(self) -> int: ...

    def learn(self, r: Round) -> None: ...


class Rival(NeverRests):
    """One proposer with a rule for its window."""

    def __init__(self, proposer: str, rule: WindowRule) -> None:
        self._proposer = proposer
        self._rule = rule

    def choose(self, views: Sequence[View]) -> list[Choice]:
        return [self._choose(view) for view in views]

    def observe(self, rounds: Sequence[Round]) -> None:
        for r in rounds:
            self._rule.learn(r)

    def _choose(self, view: View) -> Choice:
        offer = view.offers.get(self._proposer)
        if offer is not None and not offer.tokens:
            return plain(Fallback.NO_DRAFT)
        window = min(self._rule.window(), view.max_window)
        return Choice(self._proposer, window) if window else plain(Fallback.UNPROFITABLE)


class PlusTwoMinusOne:
    """Transformers' heuristic schedule: two more after a draft that held, one less otherwise."""

    def __init__(self, start: int = 5) -> None:
        self._window = start

    def window(self) -> int:
        return min(MAX_WINDOW, self._window)

    def learn(self, r: Round) -> None:
        if r.n_drafted:
            held = r.n_accepted == r.n_drafted
            self._window = self._window + 2 if held else max(1, self._window - 1)


class Tiers:
    """SGLang-like: a moving average of the accepted length picks one of a few windows."""

    _WINDOWS = (1, 3, 7, 15)

    def __init__(self, rate: float = 0.2) -> None:
        self._rate = rate
        self._accepted = 2.0

    def window(self) -> int:
        return next((k for k in self._WINDOWS if self._accepted + 1 <= k), self._WINDOWS[-1])

    def learn(self, r: Round) -> None:
        if r.n_drafted:
            self._accepted += self._rate * (r.n_accepted - self._accepted)


class EwmaProfit:
    """BeeLlama-like: survival and milliseconds by depth as moving averages, the best ratio wins.

    5 % hysteresis; off after 8 bad cycles; while off, a probe every 16; plain time measured anew
    every 1024 rounds.
    """

    _RATE, _MARGIN, _BAD, _PROBE, _BASELINE = 0.15, 1.05, 8, 16, 1024

    def __init__(self, max_window: int = MAX_WINDOW) -> None:
        self._survival = [0.8**j for j in range(1, max_window + 1)]
        self._seconds: dict[int, float] = {}
        self._window = 3
        self._n_bad = self._n_off = self._n_rounds = 0

    def window(self) -> int:
        if 0 not in self._seconds or self._n_rounds % self._BASELINE == self._BASELINE - 1:
            return 0
        if self._window == 0:
            return 3 if self._n_off % self._PROBE == self._PROBE - 1 else 0
        return self._window

    def learn(self, r: Round) -> None:
        self._n_rounds += 1
        k = r.n_drafted
        self._seconds[k] = self._ewma(self._seconds.get(k, r.timing.total_s), r.timing.total_s)
        for j in range(k):
            self._survival[j] = self._ewma(self._survival[j], float(r.n_accepted > j))
        self._judge(k)

    def _judge(self, k: int) -> None:
        self._n_off = self._n_off + 1 if self._window == 0 else 0
        best = max(self._candidates(), key=self._profit)
        if self._profit(best) > self._MARGIN * self._profit(self._window):
            self._window = best
        self._n_bad = self._n_bad + 1 if k and self._profit(k) < self._profit(0) else 0
        if self._n_bad >= self._BAD:
            self._window, self._n_bad = 0, 0

    def _candidates(self) -> list[int]:
        """Depths whose time is known, and the next ones up, whose time is guessed."""
        return [0, *range(1, min(len(self._survival), max(self._seconds, default=0) + 2) + 1)]

    def _profit(self, k: int) -> float:
        return (1.0 + sum(self._survival[:k])) / self._time(k)

    def _time(self, k: int) -> float:
        """Seconds of a cycle; between and beyond the known depths along a line."""
        if k in self._seconds:
            return self._seconds[k]
        known = sorted(self._seconds)
        low = max((d for d in known if d < k), default=known[0])
        high = min((d for d in known if d > k), default=None)
        if high is None or high == low:
            return self._seconds[low] * (1 + 0.1 * (k - low))
        share = (k - low) / (high - low)
        return self._seconds[low] + share * (self._seconds[high] - self._seconds[low])

    def _ewma(self, old: float, new: float) -> float:
        return old + self._RATE * (new - old)


RULES: dict[str, Callable[[], WindowRule]] = {
    "plus-two-minus-one": PlusTwoMinusOne,
    "tiers": Tiers,
    "ewma-profit": EwmaProfit,
}


def rival(name: str, proposer: str) -> Controller:
    """A rival by name: one of RULES, or fixed-K."""
    if name.startswith("fixed-"):
        return OneProposer(FixedWindow(int(name.removeprefix("fixed-"))), proposer)
    return Rival(proposer, RULES[name]())


class OneProposer:
    """Shows a controller one proposer only."""

    def __init__(self, controller: Controller, proposer: str) -> None:
        self._controller = controller
        self._proposer = proposer

    def due(self, n_texts: int) -> int:
        return self._controller.due(n_texts)

    def rests(self) -> bool:
        return self._controller.rests()

    def notice(self) -> None:
        self._controller.notice()

    def hear(self, seq_id: int, looks: Sequence[Look], n_generated: int) -> Choice | None:
        return self._controller.hear(seq_id, looks, n_generated)

    def consider(
        self, seq_id: int, offers: Mapping[str, Draft], shown: Sequence[Shown], n_generated: int
    ) -> None:
        self._controller.consider(seq_id, offers, shown, n_generated)

    def again(self, view: View) -> Choice | None:
        return self._controller.again(self._only(view))

    def choose(self, views: Sequence[View]) -> list[Choice]:
        return self._controller.choose([self._only(view) for view in views])

    def prices(self) -> CostTable | None:
        return None

    def observe(self, rounds: Sequence[Round]) -> None:
        self._controller.observe(rounds)

    def _only(self, view: View) -> View:
        offers = {name: draft for name, draft in view.offers.items() if name == self._proposer}
        return replace(view, proposers=(self._proposer,), offers=offers)
