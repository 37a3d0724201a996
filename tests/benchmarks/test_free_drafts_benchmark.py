"""The benchmark of free drafts: its edits are those asked for, and told texts are said whole."""

from __future__ import annotations

import difflib
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from benchmarks.measurements import free_drafts
from benchmarks.shared import served
from benchmarks.shared.wanted_edits import wanted
from parlay.bench.suite import load_suite

EDITS = {prompt.id: prompt.prediction or "" for prompt in load_suite("edits-16").prompts}


@pytest.mark.parametrize("prompt", EDITS)
def test_every_edit_changes_its_file_and_only_rewrites_change_most_of_it(prompt: str) -> None:
    before, after = EDITS[prompt].split("\n"), wanted(prompt, EDITS[prompt]).split("\n")
    same = difflib.SequenceMatcher(None, before, after).ratio()
    assert same < 0.5 if prompt.startswith("rewrite") else 0.7 < same < 1


def test_an_edit_that_no_longer_fits_its_file_says_so() -> None:
    with pytest.raises(ValueError, match="rename-01"):
        wanted("rename-01", "another file")


class Peer(BaseHTTPRequestHandler):
    """Answers as llama.cpp's server does, by its own count."""

    asked: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        self.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        body = json.dumps({"timings": {"predicted_per_second": 100.0}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


@contextmanager
def peer(*_settings: object) -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Peer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_short_run_says_the_edit_in_every_arm_and_asks_the_server_under_the_same_grammar(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fake server; the real one is started in tests/front/remote/test_llama_cpp.py."""
    out = tmp_path / "found.json"
    monkeypatch.setattr(served, "llama", peer)
    call = ["free_drafts", "--model", str(tiny_llama), "--prompts", "1", "--server", "llama-server"]
    monkeypatch.setattr(sys, "argv", [*call, "--tokens", "24", "--json", str(out)])
    free_drafts.main()
    suites = json.loads(out.read_text("utf-8"))["suites"]
    assert [suite["different_texts"] for suite in suites.values()] == [[], []]
    found = suites["edits-16"]
    assert found["over_plain"].keys() == {"free", "all", "others", "wrong"}
    # How much is bet depends on what a tiny model's passes take here and now.
    assert found["counts"]["plain"]["drafted"] == 0 < found["counts"]["free"]["rounds"]
    assert suites["structured-24"]["over_server"].keys() == {"plain", "free", "all", "others"}
    schemas = [prompt.json_schema for prompt in load_suite("structured-24").prompts]
    forms = [body["response_format"]["json_schema"]["schema"] for body in Peer.asked]
    assert [body["max_tokens"] for body in Peer.asked] == [2, 24]  # the first reads the prompt
    assert forms[0] == forms[1] and forms[0] in schemas
