"""`parlay train`: hands over to the distribution `parlay-train`, if that is installed.

Knows its entry point and how to install it, nothing of training.
"""

from __future__ import annotations

from importlib.metadata import entry_points

import typer

from parlay.errors import BadRequest

GROUP = "parlay.verbs"  # under the name `train`: a function that takes the arguments
_MISSING = (
    "parlay train is a package of its own: pip install './packages/parlay-train[torch]' in a"
    " checkout of Parlay"
)


def register(app: typer.Typer) -> None:
    """Add the verb; its options and its help are the other package's."""
    app.command(
        "train",
        help="Train a drafter for a target.",
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(train)


def train(context: typer.Context) -> None:
    """Run the installed package's command with everything that was typed after the verb."""
    found = [entry for entry in entry_points(group=GROUP) if entry.name == "train"]
    if not found:
        raise BadRequest(_MISSING)
    raise typer.Exit(found[0].load()(context.args) or 0)
