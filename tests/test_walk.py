"""The walk of one chat request: which modules hand it on, and that none is gone to twice.

Stacks are taken on a real server at the places where a request is understood, submitted, drafted
for, computed, judged and told. A module that hands it on stands on one of them; tools that are only
asked (counts, noise, settings) do not. In each direction every module is entered from one other.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import httpx
import pytest

import parlay
from parlay.control.profit import ProfitController
from parlay.control.search_pace import SearchPace
from parlay.decoding import verification
from parlay.llama.context import Context
from parlay.llama.template import ChatTemplate
from parlay.llama.vocabulary import Vocabulary
from parlay.proposers.suffix import SuffixProposer
from parlay.runtime.caching.slots import Slots
from parlay.runtime.worker import Worker
from parlay.server.api.answer_text import MarkedText
from parlay.server.api.job import Mailbox
from parlay.server.api.reply import Numbers
from tests.server.running import running

ROOT = f"{Path(parlay.__file__).parent}/"
MOST = 25
IN = [
    (ChatTemplate, "render"),
    (Vocabulary, "tokenize_parts"),
    (Worker, "submit"),
    (Slots, "take"),
    (ProfitController, "choose"),
    (SuffixProposer, "propose"),
    (Context, "decode"),
]
OUT = [(Mailbox, "put"), (MarkedText, "push"), (Numbers, "of")]

Stack = tuple[str, ...]


def module_of(code: CodeType) -> str | None:
    """As it is called under `src/parlay`; `web/hosting` runs the loop and is under every stack."""
    name = code.co_filename.removeprefix(ROOT).removesuffix(".py")
    return None if name.startswith("/") or name == "web/hosting" else name


def stack(last: CodeType) -> Stack:
    """The modules of the callers, outermost first, and that of what is called."""
    found = [module_of(last)]
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found.append(module_of(frame.f_code))
        frame = frame.f_back
    names = [name for name in reversed(found) if name is not None]
    return tuple(name for name, _ in groupby(names))


@pytest.fixture(scope="module")
def walked(tiny_llama: Path) -> dict[str, list[Stack]]:
    """The stacks of one streamed chat request, by direction."""
    found: dict[str, list[Stack]] = {"in": [], "out": []}
    with pytest.MonkeyPatch.context() as patch:
        for way, places in (("in", IN), ("out", OUT)):
            for owner, name in places:
                patch.setattr(owner, name, noted(getattr(owner, name), found[way]))
        judges = verification.VERIFICATIONS
        patch.setitem(judges, "coupled", noted(judges["coupled"], found["in"]))
        patch.setattr(asyncio, "to_thread", handed(asyncio.to_thread, found["in"]))
        # Searching takes a tiny model's time, and would rest now and then.
        patch.setattr(SearchPace, "observe", lambda *_args, **_options: None)
        # In the class that has room for drafts: prices might choose the one of single rows.
        options = {
            "model__drafter": "suffix",
            "runtime__controller": "profit",
            "runtime__exact_class": "2",
        }
        with running(tiny_llama, **options) as server:
            url = f"{server.url}/v1/chat/completions"
            httpx.post(url, json=body("first first")).raise_for_status()
            for stacks in found.values():  # what starting up and the first request needed
                stacks.clear()
            httpx.post(url, json=body("again again")).raise_for_status()
            # Prices are measured meanwhile, where a slow machine leaves an idle second.
            return {way: [s for s in stacks if not _times(s)] for way, stacks in found.items()}


def _times(stack: Stack) -> bool:
    return any(name.startswith("timing/") for name in stack)


def body(text: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"messages": messages, "max_tokens": 12, "temperature": 0, "stream": True}


def noted(function: Callable[..., Any], stacks: list[Stack]) -> Callable[..., Any]:
    """A function that notes who called it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        stacks.append(stack(function.__code__))
        return function(*args, **kwargs)

    return call


def handed(function: Callable[..., Any], stacks: list[Stack]) -> Callable[..., Any]:
    """The same for what goes on in another thread, whose stack begins anew."""

    def call(work: Callable[..., Any], *args: Any) -> Any:
        stacks.append(stack(work.__code__))
        return function(work, *args)

    return call


def parents(stacks: list[Stack]) -> dict[str, set[str]]:
    """Whom each module was entered from; it goes on where one thread hands over to another."""
    found: dict[str, set[str]] = {}
    for each in stacks:
        for before, name in zip((None, *each), each, strict=False):
            found.setdefault(name, set()).update({before} if before else set())
    return found


def test_none_is_entered_from_two_in_one_direction(walked: dict[str, list[Stack]]) -> None:
    for way, stacks in walked.items():
        twice = {name: who for name, who in parents(stacks).items() if len(who) > 1}
        assert not twice, way


def test_a_chat_request_passes_few_modules(walked: dict[str, list[Stack]]) -> None:
    modules = {name for stacks in walked.values() for each in stacks for name in each}
    assert len(modules) <= MOST, sorted(modules)


def test_the_page_names_them_in_their_order(walked: dict[str, list[Stack]]) -> None:
    page = (Path(ROOT).parents[1] / "docs/explanation/architecture.md").read_text("utf-8")
    section = page.partition("## The walk of one chat request")[2].partition("\n## ")[0]
    told = re.findall(r"^\| `([a-z_/]+)` \|", section, re.MULTILINE)
    met = dict.fromkeys(name for way in ("in", "out") for each in walked[way] for name in each)
    assert told == list(met), list(met)
