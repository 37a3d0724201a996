"""How an answer looks in a terminal: tokens coloured by origin, and a short summary.

Knows nothing of models. Text goes to standard output, everything else to standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table
from rich.text import Text

from parlay.decoding.verdict import Origin
from parlay.engine.answer import Answer
from parlay.engine.sequence import Piece

COLOURS = {
    Origin.ACCEPTED: "green",
    Origin.RECOVERED: "yellow",
    Origin.BONUS: "cyan",
    Origin.PLAIN: "",
}
LEGEND = "[green]accepted draft[/], [cyan]bonus[/], [yellow]recovered[/], plain"


def stream(pieces: Iterable[Piece], out: Console) -> None:
    """Print pieces as they come, coloured on a terminal; a file or a pipe gets every byte."""
    for piece in pieces:
        if piece.text and out.is_terminal:
            out.print(Text(piece.text, style=COLOURS[piece.origin]), end="", soft_wrap=True)
        elif piece.text:  # rich would turn tabs into spaces and drop carriage returns
            out.file.write(piece.text)
            out.file.flush()
    out.print()


@contextmanager
def measuring() -> Iterator[Callable[[float, str], None]]:
    """Show on a terminal what is being measured, from the first to the last that is told of it."""
    status = Console(stderr=True).status("")

    def tell(share: float, what: str) -> None:
        if share >= 1.0:
            status.stop()
        else:
            status.update(f"measuring this machine, once: {what} ({share:.0%})")
            status.start()

    try:
        yield tell
    finally:
        status.stop()


def summary(answer: Answer) -> Table:
    """The figures of one answer, two columns."""
    counts = answer.speculation
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    ended = {"stop": "end of text or stop string", "length": "token or context limit"}
    table.add_row("tokens", f"{len(answer.tokens)} ({ended.get(answer.finish_reason, '?')})")
    table.add_row("speed", f"{answer.tokens_per_second:.1f} tok/s")
    table.add_row("time to first token", f"{answer.prefill_s * 1e3:.0f} ms")
    table.add_row("mode", _mode(answer))
    if counts.n_drafted:
        table.add_row("acceptance length", f"{counts.acceptance_length:.2f} tokens a round")
        table.add_row("token acceptance", _share(counts.token_acceptance, counts.n_drafted))
        table.add_row(
            "sequence acceptance", _share(counts.sequence_acceptance, counts.n_speculated_rounds)
        )
        table.add_row("draft share", f"{counts.draft_share:.0%} of the text was drafted")
    elif counts.fallbacks:
        reason = counts.fallbacks.most_common(1)[0][0].value
        table.add_row("drafted", f"nothing ({reason})")
    table.add_row("time split", _split(answer))
    return table


def _mode(answer: Answer) -> str:
    if answer.mode == "faithful":
        return "faithful: every token is the target's own choice"
    if answer.exact:
        cost = answer.exact_cost_percent
        told = "" if cost is None else f", which costs {cost:.1f} % of the speed here"
        return (
            "exact: byte for byte the same with any drafts or none"
            f" (class {answer.exact_class}{told})"
        )
    return f"exact wanted, but not so: {answer.exact_reason}"


def _share(value: float, of: int) -> str:
    return f"{value:.0%} of {of}"


def _split(answer: Answer) -> str:
    counts = answer.speculation
    total = counts.draft_s + counts.verify_s + counts.overhead_s
    if total == 0:
        return "nothing to split"
    parts = (
        ("draft", counts.draft_s),
        ("verify", counts.verify_s),
        ("overhead", counts.overhead_s),
    )
    return ", ".join(f"{name} {seconds / total:.1%}" for name, seconds in parts)
