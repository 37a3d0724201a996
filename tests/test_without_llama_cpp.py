"""Who serves others' engines, watches or renders needs no llama.cpp; who needs it is told so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# Importing it fails as on a machine without it.
WITHOUT = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name in ("llama_cpp", "xllamacpp"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
"""


def without_llama_cpp(code: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "PARLAY_ENGINE"}
    return subprocess.run(
        [sys.executable, "-c", WITHOUT + code],
        capture_output=True,
        text=True,
        check=False,
        env=kept,
    )


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    main = "from parlay.cli.main import app_main; app_main()"
    return without_llama_cpp(f"sys.argv = ['parlay', *{arguments!r}]; {main}")


def test_the_front_and_commands_that_load_no_model_run_without_it() -> None:
    """All in one process: to start one takes longer than anything here."""
    code = """
import parlay.front.life
from parlay.cli.main import app_main
for verb in ("serve", "ps"):
    sys.argv = ["parlay", verb, "--help"]
    try:
        app_main()
    except SystemExit as ended:
        assert not ended.code, verb
"""
    found = without_llama_cpp(code)
    assert found.returncode == 0, found.stderr
    assert "parlay serve" in found.stdout and "parlay ps" in found.stdout


def test_a_deployment_is_rendered_without_it(tmp_path: Path) -> None:
    file = tmp_path / "deploy.yaml"
    file.write_text("model:\n  target: some/model.gguf\n")
    found = command("serve", str(file), "--render", "command")
    assert found.returncode == 0, found.stderr
    assert "some/model.gguf" in found.stdout


def test_who_wants_a_model_is_told_in_one_line_what_to_install() -> None:
    found = command("run", "hello")
    assert found.returncode == 1
    assert "parlay: no engine: llama.cpp's libraries are not installed" in found.stderr
    assert "Traceback" not in found.stderr
