"""`make demo`: one prompt with the shipped drafter, without, and as the controller would have it.

A short tour of the default model; decides nothing, shows what the library measured.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console

from parlay.cli import show
from parlay.decoding.counts import Counts
from parlay.engine.answer import Answer
from parlay.engine.start import MODEL
from parlay.errors import EngineError, ParlayError
from parlay.models import default_model
from parlay.parlay import Parlay

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
WINDOW = 4
MAX_TOKENS = 200


def main() -> int:
    out = Console(highlight=False)
    try:
        model = default_model(lambda line: out.print(line, style="dim"))
        out.print("Loading; the first start measures this machine.", style="dim")
        with Parlay(model, draft="suffix,default", context_size=2048) as parlay:
            return tour(parlay, out)
    except ParlayError as error:
        print(f"parlay: {error.message}", file=sys.stderr)
        return 1 if isinstance(error, EngineError) else 2


def tour(parlay: Parlay, out: Console) -> int:
    """Three ways, the same prompt; 0 if the texts agree."""
    parlay.generate(
        "Hello", temperature=0, max_tokens=8, draft="none"
    )  # touch every page of the file once
    out.rule(f"with the shipped drafter, {WINDOW} tokens ahead in every round")
    out.print(show.LEGEND, style="dim")
    drafted = answer(parlay, out, draft=MODEL, window=WINDOW)
    out.rule("without")
    plain = answer(parlay, out, draft="none", window=0)
    out.rule("with everything, as the controller chooses")
    chosen = answer(parlay, out)
    out.rule()
    for line in verdict(parlay, drafted, plain, chosen):
        out.print(line)
    same = drafted.text == plain.text == chosen.text
    out.print(f"the three texts are {'identical' if same else 'NOT identical'}", style="bold")
    return 0 if same or plain.mode == "faithful" else 1


def answer(parlay: Parlay, out: Console, **options: Any) -> Answer:
    # A few unrelated words take the cache first, so that every way reads the whole prompt.
    parlay.generate("Good morning.", temperature=0, max_tokens=1, raw=True, draft="none")
    stream = parlay.stream(PROMPT, temperature=0, max_tokens=MAX_TOKENS, **options)
    show.stream(stream, out)
    out.print(show.summary(stream.answer))
    return stream.answer


def verdict(parlay: Parlay, drafted: Answer, plain: Answer, chosen: Answer) -> Iterator[str]:
    """What was won or lost, and why."""
    counts = drafted.speculation
    first = next(iter(counts.acceptance_by_position), 0.0)
    yield (
        f"drafter, window {WINDOW}: {_times(drafted, plain)} ({first:.0%} of its first tokens were"
        f" right, {counts.acceptance_length:.2f} tokens a round)"
    )
    costs = parlay.engine.prices
    if costs is not None and costs.drafter is not None:
        curve = costs.curve(plain.n_prompt, 1)
        price = (curve.of(WINDOW + 1, False) + costs.drafter.draft_s(WINDOW)) / curve.of(1, False)
        won = drafted.tokens_per_second > plain.tokens_per_second
        yield _paid(price, counts.acceptance_length > price, won)
    yield f"controller: {_times(chosen, plain)} ({_decided(chosen.speculation)})"


def _paid(price: float, pays: bool, won: bool) -> str:
    """Prices are of many rounds and the measurement is of one answer: they may disagree."""
    verb = "pays" if pays else "does not pay"
    if pays == won:
        return f"such a round takes {price:.2f} plain ones on this machine: it {verb} here"
    return (
        f"such a round takes {price:.2f} plain ones by the prices of this machine: by these it"
        f" {verb}, in this one answer it {'did' if won else 'did not'}; parlay bench tells for sure"
    )


def _times(one: Answer, plain: Answer) -> str:
    return f"{one.tokens_per_second / plain.tokens_per_second:.2f}x the speed of plain decoding"


def _decided(counts: Counts) -> str:
    if not counts.n_drafted:
        return "it did not bet at all"
    bets = ", ".join(
        f"{'the drafter' if name == MODEL else name} {n}" for name, n in counts.proposers.items()
    )
    return f"it bet in {counts.n_speculated_rounds} of {counts.n_rounds} rounds: {bets}"


if __name__ == "__main__":
    sys.exit(main())
