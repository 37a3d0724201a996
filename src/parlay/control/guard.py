"""Guard rails around any controller: acceptance too low or fallbacks too many, and it steps in.

Knows rounds and limits, neither prices nor text. Nothing is configured by default: a threshold on
acceptance can switch off a pair that wins (docs/explanation/controller.md), so it is the
operator's to set.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from parlay.control.choice import Choices, Controller, View, plain
from parlay.decoding.round import Fallback, Round
from parlay.errors import BadRequest

_MOST_HALVINGS = 4  # a window of 16 is then 1; more would only take longer to undo


@dataclass(frozen=True, slots=True)
class Limits:
    """What the operator demands; None: nothing."""

    min_token_acceptance: float | None = None
    min_sequence_acceptance: float | None = None
    fallback_threshold_pct: float | None = None
    max_window: int | None = None  # the widest that may be chosen; a request's own may be wider
    n_rounds: int = 64  # the sliding window
    n_enough: int = 16  # no judgement on fewer speculated rounds
    n_cool_down: int = 128  # passes decoded plainly before the next attempt

    def __post_init__(self) -> None:
        for share in (self.min_token_acceptance, self.min_sequence_acceptance):
            if share is not None and not 0 <= share <= 1:
                raise BadRequest(f"a minimum acceptance of {share}; give a share from 0 to 1")
        percent = self.fallback_threshold_pct
        if percent is not None and not 0 < percent <= 100:
            raise BadRequest(f"a fallback threshold of {percent} %; give 0 to 100")
        if not 1 <= self.n_enough <= self.n_rounds or self.n_cool_down < 1:
            raise BadRequest("guard rails need 1 <= n_enough <= n_rounds and n_cool_down >= 1")


@dataclass(frozen=True, slots=True)
class LimitAlert:
    """A limit was passed."""

    kind: str  # token_acceptance, sequence_acceptance or fallback_share
    value: float
    limit: float


OnAlert = Callable[[LimitAlert], None]


def _ignore(_alert: LimitAlert) -> None:
    pass


class Guarded:
    """A controller that has to keep to limits."""

    def __init__(self, controller: Controller, limits: Limits, on_alert: OnAlert = _ignore) -> None:
        self.controller = controller
        self.limits = limits
        self._on_alert = on_alert
        self._drafts: deque[tuple[int, int]] = deque(maxlen=limits.n_rounds)  # drafted, accepted
        self._fallbacks: deque[bool] = deque(maxlen=limits.n_rounds)
        self._n_cooling = 0
        self._halvings = 0

    @property
    def cooling(self) -> bool:
        """Whether acceptance was too low and everything decodes plainly for now."""
        return self._n_cooling > 0

    def choose(self, views: Sequence[View]) -> Choices:
        if self.cooling:
            why = Fallback.LOW_ACCEPTANCE
            return Choices([plain(view.fallback or why, search=False) for view in views])
        return self.controller.choose([self._narrow(view) for view in views])

    def kept(self) -> dict[str, Any]:
        return self.controller.kept()

    def observe(self, rounds: Sequence[Round]) -> None:
        self.controller.observe(rounds)
        for r in rounds:
            if r.n_drafted:
                self._drafts.append((r.n_drafted, r.n_accepted))
            if r.fallback is None or not r.fallback.is_choice:
                self._fallbacks.append(r.fallback is not None)
        if self.cooling:
            self._n_cooling -= 1
        else:
            self._judge()

    def _narrow(self, view: View) -> View:
        most = view.max_window
        if self.limits.max_window is not None and view.window is None:
            most = min(most, self.limits.max_window)
        if self._halvings and most:  # never to nothing: it could not widen again
            most = max(1, most >> self._halvings)
        return view if most == view.max_window else replace(view, max_window=most)

    def _judge(self) -> None:
        self._judge_acceptance()
        self._judge_fallbacks()

    def _judge_acceptance(self) -> None:
        if len(self._drafts) < self.limits.n_enough:
            return
        drafted = sum(n for n, _ in self._drafts)
        accepted = sum(n for _, n in self._drafts)
        whole = sum(n == m for n, m in self._drafts)
        low_tokens = self._below(
            "token_acceptance", accepted / drafted, self.limits.min_token_acceptance
        )
        low_sequences = self._below(
            "sequence_acceptance", whole / len(self._drafts), self.limits.min_sequence_acceptance
        )
        if low_tokens or low_sequences:
            self._n_cooling = self.limits.n_cool_down
            self._drafts.clear()  # the next attempt is judged on its own

    def _judge_fallbacks(self) -> None:
        limit = self.limits.fallback_threshold_pct
        if limit is None or len(self._fallbacks) < self.limits.n_rounds:
            return
        percent = 100.0 * sum(self._fallbacks) / len(self._fallbacks)
        if percent > limit:
            self._on_alert(LimitAlert("fallback_share", percent, limit))
            self._halvings = min(self._halvings + 1, _MOST_HALVINGS)
            self._fallbacks.clear()
        elif self._halvings:
            self._halvings -= 1
            self._fallbacks.clear()

    def _below(self, kind: str, value: float, limit: float | None) -> bool:
        if limit is None or value >= limit:
            return False
        self._on_alert(LimitAlert(kind, value, limit))
        return True
