"""Verbs as a user calls them, in this process."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from parlay.cli.main import app


def call(*arguments: object) -> Result:
    """Run a verb; its exit code, output and exception."""
    return CliRunner().invoke(app, [str(a) for a in arguments])
