"""Verbs as a user calls them, in this process."""

from __future__ import annotations

import typer
from typer.testing import CliRunner, Result

from parlay.cli import ab, bench, map, models, pull, report, submit, tune

app = typer.Typer()
for verb in (ab, bench, map, models, pull, report, submit, tune):
    verb.register(app)


def call(*arguments: object) -> Result:
    """Run a verb; its exit code, output and exception."""
    return CliRunner().invoke(app, [str(a) for a in arguments])
