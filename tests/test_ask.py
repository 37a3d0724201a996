"""What front and backend say to each other goes over a wire as it is, and needs nothing to."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from parlay.ask import (
    Accepted,
    Ask,
    CallForm,
    Detail,
    Done,
    End,
    Facts,
    Figures,
    Form,
    Gap,
    Pieces,
    Reading,
    Refused,
    Remark,
    Reply,
    Samplers,
    Score,
    SoFar,
    Speculation,
    ToolFunction,
)

_TALK = {"role": "user", "content": "<|im_start|>system"}
_CALL = {"function": {"name": "add", "arguments": {"a": 1, "b": [None, 2.5]}}}
ASKS = [
    Ask(door="chat", messages=(_TALK, {"role": "assistant", "tool_calls": [_CALL]})),
    Ask(door="completions", prompts=("a text", (1, 2, 3)), n=2, logprobs=0, seed=(1 << 64) - 1),
    Ask(door="infill", gap=Gap("before", "after", (("name", "text"),), "begun")),
    Ask(
        door="responses",
        messages=(_TALK,),
        tools=(ToolFunction("add", {"type": "object"}, "adds", strict=True),),
        tool_named="add",
        form=Form(json_schema={"type": "object"}),
        samplers=Samplers(temperature=0.0, logit_bias={7: -100.0}),
        speculation=Speculation(enabled=False, mode="exact"),
        template_options={"enable_thinking": False},
        headers={"x-task": "code"},
    ),
]
_SCORE = Score("a", -0.5, b"a")
REPLIES: list[Any] = [
    Accepted(n_prompt=(3, 3), seed=1, temperature=0.8, mode="exact", policy="chat"),
    Reading(0, 512, 50_000, 0),
    Pieces(1, ("a", "", "b"), 3, 12.5, (Detail("accepted", "suffix", "x", _SCORE, (_SCORE,)),)),
    SoFar(Figures(n_generated=3, speculation={"rounds": 2})),
    End(0, "stop", Figures(), stopped_by="\n"),
    End(1, "error", Figures(), error=Refused(503, "gone", "server_error", "backend_lost")),
    Done(Figures(ttft_s=0.1), texts=("prompt", "answer")),
    Refused(400, "too long", code="context_length_exceeded", param="messages"),
]


@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: ask.door)
def test_a_request_arrives_as_it_was_sent(ask: Ask) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(ask), type=Ask) == ask


def test_what_comes_back_arrives_as_it_was_sent() -> None:
    sent = msgspec.msgpack.encode(REPLIES)
    assert msgspec.msgpack.decode(sent, type=list[Reply]) == REPLIES


def test_the_facts_of_a_model_arrive_as_they_were_told() -> None:
    form = CallForm(name="hermes", kind="json", open="<tool_call>", close="</tool_call>")
    facts = Facts(names=("m",), context_size=512, n_slots=4, mode="exact", form=form)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(facts), type=Facts) == facts


def test_a_remark_is_told_as_json() -> None:
    assert Remark("top_k", "ignored").as_dict() == {"param": "top_k", "message": "ignored"}


def test_saying_it_needs_neither_llama_cpp_nor_numpy_nor_http() -> None:
    """The module alone: what the package loads beside it is not its affair."""
    code = (
        "import sys, importlib.util as u;"
        "s = u.spec_from_file_location('ask', sys.argv[1]); m = u.module_from_spec(s);"
        "sys.modules['ask'] = m; s.loader.exec_module(m);"
        "print({n.split('.')[0] for n in sys.modules}"
        " & {'llama_cpp', 'numpy', 'fastapi', 'starlette', 'uvicorn', 'httpx', 'parlay'})"
    )
    file = sys.modules[Ask.__module__].__file__
    assert file is not None
    command = [sys.executable, "-c", code, file]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("set()", "")
