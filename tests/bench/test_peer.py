"""llama.cpp's own server as the peer: started, asked, ended; and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from parlay.bench.peer import LlamaServer, PeerSettings, _binary_command
from parlay.bench.subject import SubjectError
from parlay.errors import BadRequest


def test_unknown_kinds_of_speculation_are_refused() -> None:
    with pytest.raises(BadRequest, match="ngram-mod"):
        PeerSettings("m.gguf", "magic")


def test_draft_simple_needs_a_drafter() -> None:
    with pytest.raises(BadRequest, match="--peer-drafter"):
        PeerSettings("m.gguf", "draft-simple")


def test_a_binary_gets_llama_servers_own_options(tmp_path: Path) -> None:
    binary = tmp_path / "llama-server"
    binary.write_text("")
    settings = PeerSettings("m.gguf", "draft-simple", "d.gguf", 5, 2048, 4, -1, "CUDA0")
    command = " ".join(_binary_command(binary, settings, 1234))
    for part in ("-m m.gguf", "-md d.gguf", "--spec-type draft-simple", "--port 1234", "-t 4"):
        assert part in command
    for part in ("--spec-draft-n-max 5", "-c 2048", "--device CUDA0", "-ngl 999"):
        assert part in command


def test_a_missing_binary_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="no llama-server"):
        LlamaServer(PeerSettings("m.gguf"), tmp_path / "nothing")


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"not a model")
    with pytest.raises(SubjectError, match="did not start"):
        LlamaServer(PeerSettings(str(bad), threads=1, n_context=64))
