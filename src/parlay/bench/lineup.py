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

from parlay.bench.endpoint import Client, EndpointArm, Server, discover, file_name
from parlay.bench.own import OwnArm, OwnProcess, ProcessArm
from parlay.bench.peer import LlamaServer, PeerSettings
from parlay.bench.record import ArmInfo
from parlay.bench.subject import Subject
from parlay.bench.suite import Prompt, Suite, suite_hash
from parlay.engine.start import FREE_PROPOSERS, MODEL
from parlay.errors import BadRequest
from parlay.hub.resolving import resolve_model
from parlay.llama import library
from parlay.parlay import Parlay, known_draft, named_draft
from parlay.reading.bounds import one_line
from parlay.routing import parse_draft

_WIDEST = 16  # that the controller may choose


@dataclass(frozen=True, slots=True)
class OwnOptions:
    """What the own engine loads, and in which ways it is asked."""

    model: str = "default"
    drafts: tuple[str, ...] = ("auto",)  # one arm each; auto: what Parlay would choose
    windows: tuple[int | None, ...] = (None,)  # None: the controller's choice
    loading: Mapping[str, Any] = field(default_factory=dict)  # keywords of `Parlay`
    devices: tuple[str, ...] = ()  # an engine for each
    libraries: tuple[str, ...] = ()  # folders of llama.cpp builds, a process for each

    def __post_init__(self) -> None:
        wider = [k for k in self.windows if k is not None and k > _WIDEST]
        if wider and None in self.windows:
            raise BadRequest(f"a window of {wider[0]} beside auto; {_WIDEST} is the widest there")

    def resolved(self) -> OwnOptions:
        """Every draft by its files; `auto` by what it stands for with this target."""
        chosen = known_draft(resolve_model(self.model))
        drafts = (chosen if draft == "auto" else named_draft(draft) for draft in self.drafts)
        return replace(self, drafts=tuple(",".join(names) or "none" for names in drafts))

    @property
    def drafter(self) -> Path | None:
        """The file of the draft model, if there is one."""
        names = [name for draft in self.resolved().drafts for name in parse_draft(draft)]
        return next((Path(name) for name in names if name not in FREE_PROPOSERS), None)


@dataclass(slots=True)
class Lineup:
    """Arms in order, the baseline first; use it in a `with` block."""

    say: Callable[[str], None]
    arms: dict[str, Subject] = field(default_factory=dict)
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

    def add_own(self, options: OwnOptions) -> None:
        """Plain decoding, then every draft and window, on every device or build."""
        options = options.resolved()
        for number, folder in enumerate(options.libraries, 1):
            prefix = f"build {number} "
            if not Path(folder).is_dir():
                raise BadRequest(f"no folder {folder}; --library names one of llama.cpp libraries")
            self.say(f"Loading {file_name(options.model)} on {prefix}...")
            process = OwnProcess(_keywords(options, options.devices[:1]), Path(folder))
            self._stack.callback(process.close)
            facts: dict[str, Any] = {"build": one_line(process.build, 90)}
            for info, draft in _own_arms(options, prefix, facts):
                self.add(ProcessArm(process, info, draft))
        for device in () if options.libraries else options.devices or ("",):
            self.say(f"Loading {file_name(options.model)} {device}".rstrip() + " ...")
            parlay = Parlay(**_keywords(options, (device,) if device else ()))
            self._stack.callback(parlay.close)
            prefix = f"{device} " if len(options.devices) > 1 else ""
            facts = {"build": one_line(library.version(), 90), "device": device or None}
            facts["mode"] = parlay.engine.mode
            for info, draft in _own_arms(options, prefix, facts):
                self.add(OwnArm(parlay, info, draft))

    def add_endpoint(
        self,
        name: str,
        url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        extra: Mapping[str, Any] | None = None,
        changed: str | None = None,
    ) -> Server:
        """A server that somebody else runs."""
        client = Client(url, api_key=api_key)
        self._stack.callback(client.close)
        server = discover(client, model)
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
        wheel = None if binary else f"xllamacpp {metadata.version('xllamacpp')}"
        info = ArmInfo(
            name=f"llama.cpp {settings.spec_type}",
            kind="llama.cpp",
            method=settings.spec_type,
            speculates=settings.spec_type != "none",
            window=settings.n_max,
            model=file_name(settings.model),
            drafter=file_name(settings.drafter) if settings.drafter else None,
            build=wheel or server.build,
            device=settings.device,
        )
        self.add(EndpointArm(client, server, info))


def _keywords(options: OwnOptions, devices: Sequence[str]) -> dict[str, Any]:
    """As `Parlay` takes them."""
    loaded = dict.fromkeys(name for draft in options.drafts for name in parse_draft(draft))
    settings: dict[str, Any] = {
        **options.loading,
        "target": str(resolve_model(options.model)),
        "draft": ",".join(loaded) or "none",
        "devices": tuple(devices),
    }
    if None not in options.windows:  # else they are windows of requests, below the widest
        settings["window"] = max(k for k in options.windows if k is not None)
    return settings


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
        for window in options.windows:
            tail = "" if window is None else f" k={window}"
            info = ArmInfo(
                name=f"{prefix}{'+'.join(names)}{tail}",
                method="+".join(names),
                speculates=True,
                window=window,
                drafter=file_name(files[0]) if files else None,
                **common,
            )
            arms.append((info, ",".join(names)))
    return arms


def quick_suite(suite: Suite) -> Suite:
    """The shortest prompt of each category: enough to see whether it works."""

    def n_characters(prompt: Prompt) -> int:
        return sum(len(message.get("content") or "") for message in prompt.messages)

    shortest: dict[str, Prompt] = {}
    for prompt in sorted(suite.prompts, key=n_characters):
        shortest.setdefault(prompt.category, prompt)
    prompts = tuple(prompt for prompt in suite.prompts if prompt in shortest.values())
    return replace(suite, prompts=prompts, sha256=suite_hash(prompts))
