"""The line-up: turns options into arms, opens what they need, and closes it in the end.

Knows every kind of subject; runs none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from parlay.bench.subjects.endpoint import Client, EndpointArm, Server, discover, file_name
from parlay.bench.subjects.own import OwnArm
from parlay.bench.subjects.own_process import OwnProcess, ProcessArm
from parlay.bench.subjects.peer import LlamaServer, PeerSettings
from parlay.bench.subjects.subject import ArmInfo, Subject
from parlay.bench.suite import Prompt, Suite, suite_hash
from parlay.engine.start import FREE_PROPOSERS, MODEL
from parlay.errors import BadRequest
from parlay.hub.resolving import resolve_model
from parlay.llama import library
from parlay.parlay import Parlay, known_draft, named_draft, parse_draft
from parlay.reading.bounds import one_line

Say = Callable[[str], None]
_WIDEST = 16  # that the controller may choose


@dataclass(frozen=True, slots=True)
class OwnOptions:
    """What the own runtime loads, and in which ways it is asked."""

    model: str = "default"
    drafts: tuple[str, ...] = ("auto",)  # one arm each; auto: what Parlay would choose
    windows: tuple[int | None, ...] = (None,)  # None: the controller's choice
    mode: str | None = None
    n_context: int = 4096
    threads: int = 0
    gpu_layers: int = -1
    devices: tuple[str, ...] = ()  # a runtime for each
    libraries: tuple[str, ...] = ()  # folders of llama.cpp builds, a process for each

    def __post_init__(self) -> None:
        wider = [k for k in self.windows if k is not None and k > _WIDEST]
        if wider and None in self.windows:
            raise BadRequest(f"a window of {wider[0]} beside auto; {_WIDEST} is the widest there")


@dataclass(slots=True)
class Lineup:
    """Arms in order, the baseline first; use it in a `with` block."""

    say: Say
    arms: dict[str, Subject] = field(default_factory=dict)
    runtime: Parlay | None = None  # the first own runtime: its costs are measured
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Lineup:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def add(self, subject: Subject) -> None:
        name = subject.info.name
        if name in self.arms:
            raise BadRequest(f"two arms are called {name!r}; drop one of the options")
        self.arms[name] = subject

    # -- the own runtime ------------------------------------------------------

    def add_own(self, options: OwnOptions) -> None:
        """Plain decoding, then every draft and window, on every device or build."""
        options = replace(options, drafts=_resolved(options))
        if options.libraries:
            for number, path in enumerate(options.libraries, 1):
                self._add_build(options, Path(path), f"build {number} ")
            return
        for device in options.devices or ("",):
            self._add_device(options, device)

    def _add_device(self, options: OwnOptions, device: str) -> None:
        self.say(f"Loading {file_name(options.model)} {device}".rstrip() + " ...")
        settings = _parlay_options(options, (device,) if device else ())
        runtime = Parlay(**settings)
        self._stack.callback(runtime.close)
        self.runtime = self.runtime or runtime
        build = one_line(library.version(), 90)
        prefix = f"{device} " if len(options.devices) > 1 else ""
        facts: dict[str, Any] = {"build": build, "device": device or None}
        facts["mode"] = runtime.engine.mode
        for info, draft in _own_arms(options, prefix, facts):
            self.add(OwnArm(runtime, info, draft))

    def _add_build(self, options: OwnOptions, path: Path, prefix: str) -> None:
        if not path.is_dir():
            raise BadRequest(f"no folder {path}; --library names a folder of llama.cpp libraries")
        self.say(f"Loading {file_name(options.model)} on {prefix}...")
        process = OwnProcess(_parlay_options(options, options.devices[:1]), path)
        self._stack.callback(process.close)
        facts = {"build": one_line(process.build, 90), "device": None, "mode": options.mode}
        for info, draft in _own_arms(options, prefix, facts):
            self.add(ProcessArm(process, info, draft))

    # -- endpoints and peers --------------------------------------------------

    def add_endpoint(
        self,
        name: str,
        url: str,
        *,
        model: str | None = None,
        kind: Any = None,
        api_key: str | None = None,
        extra: Mapping[str, Any] | None = None,
        changed: str | None = None,
    ) -> Server:
        """A server that somebody else runs."""
        client = Client(url, api_key=api_key)
        self._stack.callback(client.close)
        server = discover(client, model, kind)
        info = ArmInfo(
            name=name,
            kind=server.kind,
            method="unknown",
            model=file_name(server.model),
            drafter=server.drafter,
            build=server.build,
            changed=one_line(changed, 90) if changed else None,
        )
        self.add(EndpointArm(client, server, info, extra))
        return server

    def add_peer(self, settings: PeerSettings, binary: Path | None = None) -> None:
        """llama.cpp's own server with one kind of speculation."""
        self.say(f"Starting llama.cpp's server with --spec-type {settings.spec_type} ...")
        running = LlamaServer(settings, binary)
        self._stack.callback(running.close)
        client = Client(running.url)
        self._stack.callback(client.close)
        server = discover(client, kind="llama.cpp")
        info = ArmInfo(
            name=f"llama.cpp {settings.spec_type}",
            kind="llama.cpp",
            method=settings.spec_type,
            speculates=settings.spec_type != "none",
            window=settings.n_max,
            model=file_name(settings.model),
            drafter=file_name(settings.drafter) if settings.drafter else None,
            build=server.build if binary else _wheel_build(),
            device=settings.device,
        )
        self.add(EndpointArm(client, server, info))


def _wheel_build() -> str:
    return f"xllamacpp {metadata.version('xllamacpp')}"


def _parlay_options(options: OwnOptions, devices: Sequence[str]) -> dict[str, Any]:
    loaded = dict.fromkeys(name for draft in options.drafts for name in parse_draft(draft))
    settings: dict[str, Any] = {
        "target": str(resolve_model(options.model)),
        "draft": ",".join(loaded) or "none",
        "mode": options.mode,
        "context_size": options.n_context,
        "threads": options.threads,
        "gpu_layers": options.gpu_layers,
        "devices": tuple(devices),
    }
    if None in options.windows:  # windows of requests, below the controller's widest
        return settings
    return {**settings, "window": max(k for k in options.windows if k is not None)}


def _own_arms(
    options: OwnOptions, prefix: str, facts: Mapping[str, Any]
) -> list[tuple[ArmInfo, str | None]]:
    """(what an arm is, the proposers it asks for)."""
    common = {**facts, "kind": "parlay", "model": file_name(str(resolve_model(options.model)))}
    plain = ArmInfo(name=f"{prefix}plain", method="none", speculates=False, **common)
    arms: list[tuple[ArmInfo, str | None]] = [(plain, "none")]
    for draft in options.drafts:
        names = [n if n in FREE_PROPOSERS else MODEL for n in parse_draft(draft)]
        files = [n for n in parse_draft(draft) if n not in FREE_PROPOSERS]
        method = "+".join(names)
        for window in options.windows:
            tail = "" if window is None else f" k={window}"
            info = ArmInfo(
                name=f"{prefix}{method}{tail}",
                method=method,
                speculates=True,
                window=window,
                drafter=file_name(files[0]) if files else None,
                **common,
            )
            arms.append((info, ",".join(names)))
    return arms


def _resolved(options: OwnOptions) -> tuple[str, ...]:
    """Every draft by its files; `auto` by what it stands for with this target."""
    chosen = known_draft(resolve_model(options.model))
    drafts = (chosen if draft == "auto" else named_draft(draft) for draft in options.drafts)
    return tuple(",".join(names) or "none" for names in drafts)


def drafter_path(options: OwnOptions) -> Path | None:
    """The file of the draft model, if there is one."""
    names = [name for draft in _resolved(options) for name in parse_draft(draft)]
    return next((Path(name) for name in names if name not in FREE_PROPOSERS), None)


def quick_suite(suite: Suite) -> Suite:
    """The shortest prompt of each category: enough to see whether it works."""
    shortest: dict[str, Prompt] = {}
    for prompt in sorted(suite.prompts, key=_n_characters):
        shortest.setdefault(prompt.category, prompt)
    prompts = tuple(prompt for prompt in suite.prompts if prompt in shortest.values())
    return replace(suite, prompts=prompts, sha256=suite_hash(prompts))


def _n_characters(prompt: Prompt) -> int:
    return sum(len(message.get("content") or "") for message in prompt.messages)
