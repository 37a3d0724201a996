"""SIGHUP: what is the front's takes effect at once, what is the engine's with another engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parlay.deployment import Deployment
from parlay.errors import ParlayError
from parlay.front.service import Service


def changed(old: Deployment, **sections: dict[str, Any]) -> Deployment:
    """Another deployment: what is given replaces what was."""
    parts = {n: getattr(old, n).model_copy(update=given) for n, given in sections.items()}
    return old.model_copy(update=parts)


def test_what_cannot_be_taken_over_whole_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "garbled").write_bytes(b"\xff\xfe\x00")
    section = {"host": "0.0.0.0", "api_keys": ["secret"]}
    before = Deployment.model_validate({"server": section})
    log = str(tmp_path / "file" / "log")
    wrong = {
        "the last key is gone": changed(before, server={"api_keys": (), "max_answer_tokens": 5}),
        "no address is taken anew": changed(before, server={"api_keys": (), "host": "127.0.0.1"}),
        "no such key file": changed(
            before, server={"api_keys_file": "/nowhere", "max_answer_tokens": 5}
        ),
        "a garbled key file": changed(before, server={"api_keys_file": str(tmp_path / "garbled")}),
        "no such log": changed(
            before, monitoring={"request_log": log}, server={"max_answer_tokens": 5}
        ),
    }
    service = Service(before)
    for what, new in wrong.items():
        with pytest.raises(ParlayError):
            service.apply(new)
        assert service.deployment is before, what
        assert service.keys.opens("Bearer secret") and not service.keys.opens(""), what
    right = {"max_answer_tokens": 5}, {"request_log": str(tmp_path / "log")}
    service.apply(changed(before, server=right[0], monitoring=right[1]))
    assert service.deployment.server.max_answer_tokens == 5
    service.close()
