"""`make demo`: one prompt with speculation, then without, then what that was worth.

A short tour of the default model; decides nothing, shows what the library measured.
"""

from __future__ import annotations

import sys

from rich.console import Console

from parlay.cli import show
from parlay.errors import ParlayError
from parlay.models import default_model
from parlay.parlay import Parlay
from parlay.runtime.answer import Answer

PROMPT = """Here is a Python class. Write it again with a docstring in every method, and keep \
everything else as it is.

class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("the amount must be positive")
        self.balance += amount
        return self.balance

    def withdraw(self, amount):
        if amount <= 0:
            raise ValueError("the amount must be positive")
        if amount > self.balance:
            raise ValueError("there is not enough money")
        self.balance -= amount
        return self.balance
"""


def main() -> int:
    out = Console(highlight=False)
    try:
        model = default_model(lambda line: out.print(line, style="dim"))
        out.print("Loading; the first start measures this machine.", style="dim")
        with Parlay(model, context_size=2048) as parlay:
            return tour(parlay, out)
    except ParlayError as error:
        print(f"parlay: {error.message}", file=sys.stderr)
        return 2


def tour(parlay: Parlay, out: Console) -> int:
    """Both ways, the same prompt; 0 if the texts agree."""
    parlay.generate("Hello", max_tokens=8)  # touch every page of the file once, for both
    out.rule("with speculation")
    out.print(show.LEGEND, style="dim")
    bet = answer(parlay, out, "suffix")
    out.rule("without")
    plain = answer(parlay, out, "none")
    out.rule()
    same = bet.text == plain.text
    out.print(f"speed-up: {bet.tokens_per_second / plain.tokens_per_second:.2f}x", style="bold")
    out.print(f"the two texts are {'identical' if same else 'NOT identical'}", style="bold")
    return 0 if same or bet.mode == "faithful" else 1


def answer(parlay: Parlay, out: Console, draft: str) -> Answer:
    # A few unrelated words take the cache first, so that both ways read the whole prompt.
    parlay.generate("Good morning.", max_tokens=1, raw=True)
    # A fixed window: the controller wants to see some rounds first, and this is a short tour.
    window = 0 if draft == "none" else 4
    stream = parlay.stream(PROMPT, draft=draft, window=window, max_tokens=200)
    show.stream(stream, out)
    out.print(show.summary(stream.answer))
    return stream.answer


if __name__ == "__main__":
    sys.exit(main())
