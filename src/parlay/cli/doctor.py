"""`parlay doctor`: the deployment checklist, run. Exit code 1 if any item fails.

Shows findings as lines, JSON or JUnit; the checks are in `doctor_checks.py`, those of a gateway in
`doctor_gateway.py`.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from parlay.cli import doctor_checks, doctor_gateway
from parlay.cli.doctor_checks import Finding
from parlay.cli.options import Json
from parlay.deployment import Deployment, load_deployment
from parlay.errors import BadRequest

EXAMPLE = """
Example: parlay doctor speculative-deploy.yaml --junit doctor.xml

No model is loaded; with engine: endpoints each server is asked how it is.
Exit code 0: nothing fails (warnings may be shown); 1: something does.
"""
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("doctor", help="Run the deployment checklist.", epilog=EXAMPLE)(doctor)


def doctor(
    deployment: Annotated[
        Path | None, typer.Argument(help="speculative-deploy.yaml; none: all defaults.")
    ] = None,
    json_output: Json = False,
    junit: Annotated[Path | None, typer.Option(help="Write a JUnit file for CI.")] = None,
) -> None:
    """Examine a deployment."""
    findings = _findings(load_deployment(deployment))
    failed = sum(finding.status == "fail" for finding in findings)
    if junit is not None:
        _write_junit(junit, findings)
    if json_output:
        rows = [asdict(finding) for finding in findings]
        typer.echo(json.dumps({"ok": not failed, "findings": rows}))
    else:
        _print(findings)
    if failed:
        raise typer.Exit(1)


def _findings(deployment: Deployment) -> list[Finding]:
    if deployment.engine == "endpoints":
        return doctor_gateway.examine(deployment)
    return doctor_checks.examine(deployment)


def _print(findings: Sequence[Finding]) -> None:
    out = Console(highlight=False)
    for finding in findings:
        line = Text(f"{finding.status:5}", style=_COLOURS[finding.status])
        line.append(f"{finding.item:20} ", style="bold")
        line.append(finding.found, style="default")
        out.print(line, soft_wrap=True)
        if finding.todo:
            out.print(Text(f"     {'':20} {finding.todo}", style="dim"), soft_wrap=True)


def junit_xml(findings: Sequence[Finding]) -> str:
    """One test case for each finding; warnings pass, with what to do as their output."""
    failures = sum(finding.status == "fail" for finding in findings)
    suite = ET.Element(
        "testsuite", name="parlay doctor", tests=str(len(findings)), failures=str(failures)
    )
    for finding in findings:
        case = ET.SubElement(suite, "testcase", classname="parlay.doctor", name=finding.item)
        text = _printable(f"{finding.found}. {finding.todo}" if finding.todo else finding.found)
        if finding.status == "fail":
            ET.SubElement(case, "failure", message=text)
        else:
            ET.SubElement(case, "system-out").text = f"{finding.status}: {text}"
    return ET.tostring(suite, encoding="unicode", xml_declaration=True)


def _printable(text: str) -> str:
    # XML knows no control characters, however they are written.
    return "".join(c if c.isprintable() else "?" for c in text)


def _write_junit(path: Path, findings: Sequence[Finding]) -> None:
    try:
        path.write_text(junit_xml(findings), "utf-8")
    except OSError as error:
        raise BadRequest(f"{path} cannot be written ({error.strerror})") from None
