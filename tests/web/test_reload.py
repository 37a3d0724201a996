"""A reload changes everything that it can, or nothing at all; at server and gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from parlay.deployment import Deployment
from parlay.gateway.service import Gateway
from parlay.server.lifecycle.reload import reload
from parlay.server.lifecycle.service import Service
from tests.gateway.fakes import Engine, engines
from tests.gateway.running import gateway
from tests.server.running import running
from tests.serving import PATIENCE_S

Change = Callable[[Deployment], Deployment]


def changed(**sections: dict[str, Any]) -> Change:
    """Another deployment: what is given replaces what was."""

    def change(old: Deployment) -> Deployment:
        parts = {n: getattr(old, n).model_copy(update=given) for n, given in sections.items()}
        return old.model_copy(update=parts)

    return change


@contextmanager
def open_to_all(kind: str, target: Path) -> Iterator[Service | Gateway]:
    """Bound to every address, with a key."""
    if kind == "server":
        options = {"server__host": "0.0.0.0", "server__api_keys": "secret"}
        with running(target, runtime__slots=1, **options) as found:
            yield found.service
    else:
        section = {"host": "0.0.0.0", "api_keys": ["secret"]}
        with engines(Engine("m")) as (one,):
            pool = {"name": "all", "urls": [one.url]}
            with gateway(pool, server=section, wait=False) as made:
                yield made.gateway


def reloaded(service: Service | Gateway, new: Deployment) -> bool:
    if isinstance(service, Service):
        assert service.loop is not None
        work = reload(service, lambda: new)
        return asyncio.run_coroutine_threadsafe(work, service.loop).result(PATIENCE_S)
    try:
        service.apply(new)
    except Exception:
        return False
    return True


@pytest.mark.parametrize("kind", ["server", "gateway"])
def test_what_cannot_be_taken_over_whole_changes_nothing(
    kind: str, target: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "garbled").write_bytes(b"\xff\xfe\x00")
    wrong: dict[str, Change] = {
        "the last key is gone": changed(server={"api_keys": (), "max_n": 5}),
        "no address is taken anew": changed(server={"api_keys": (), "host": "127.0.0.1"}),
        "no such key file": changed(server={"api_keys_file": "/nowhere", "max_n": 5}),
        "a garbled key file": changed(server={"api_keys_file": str(tmp_path / "garbled")}),
        "no such log": changed(
            monitoring={"request_log": str(tmp_path / "file" / "log")}, server={"max_n": 5}
        ),
    }
    with open_to_all(kind, target) as service:
        before = service.deployment
        for what, change in wrong.items():
            assert not reloaded(service, change(before)), what
            assert service.deployment is before, what
            assert service.keys.opens("Bearer secret") and not service.keys.opens(""), what
        log = str(tmp_path / "log")
        right = changed(server={"max_n": 5}, monitoring={"request_log": log})
        assert reloaded(service, right(before))
        assert service.deployment.server.max_n == 5


def test_a_restart_is_needed_as_long_as_the_file_differs_from_what_was_started(
    target: Path,
) -> None:
    with running(target, runtime__slots=1) as found:
        service = found.service
        first = service.deployment
        more = changed(runtime={"slots": 2})(first)

        def needed() -> list[str]:
            return [alert.message for alert in service.alerts.active.values()]

        for new in (more, changed(server={"max_n": 5})(more)):
            assert reloaded(service, new)
            assert needed() == ["runtime.slots changed and will act after a restart"]
        assert service.alerts.n_raised["restart_needed"] == 1
        assert reloaded(service, first)
        assert needed() == []
