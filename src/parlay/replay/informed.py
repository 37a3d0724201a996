"""A controller that has read a text before and may lose what it likes: all that betting can reach.

Knows the replay; it is a measure for the controller that does neither, and is never used online.
"""

from __future__ import annotations

from parlay.control.account import Account
from parlay.control.prices.cost import CostTable
from parlay.control.profit import ProfitController
from parlay.replay.recording import Recording
from parlay.replay.replay import Replay

_N_READINGS = 3


class Unlimited(Account):
    """May lose whatever it likes."""

    def allowance(
        self, seq_id: int, proposer: str, n_generated: int, plain_s: float, limit_s: float
    ) -> float:
        super().allowance(seq_id, proposer, n_generated, plain_s, limit_s)  # it keeps books there
        return float("inf")


def seconds_when_known(recording: Recording, costs: CostTable, proposers: tuple[str, ...]) -> float:
    """Its last reading of the same text, with nothing to keep it from betting."""
    controller = ProfitController(costs.copy())
    controller.account = Unlimited()
    replay = Replay([recording], proposers)
    return [replay.run(controller, costs)[0].seconds for _ in range(_N_READINGS)][-1]
