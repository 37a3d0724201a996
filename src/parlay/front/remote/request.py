"""From an ask to a body for a remote server: OpenAI's words, and what each engine calls the rest.

What a server cannot follow is refused by its name, never dropped. Knows no connections.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from parlay.ask import Ask, Speculation
from parlay.deployment import Deployment
from parlay.errors import BadRequest
from parlay.front.errors import Failure
from parlay.reading import answers
from parlay.routing import RequestFacts, Rule, first_match

_UNSAID = 4096  # tokens an answer may have where neither client nor deployment says
_OWN = frozenset({"parlay", "llamacpp"})  # who they say they are (`owned_by`)
# Fields of ours that only some engines have, with each engine's name for them.
_REPEAT = {"vllm": "repetition_penalty", "sglang": "repetition_penalty"}
_LLAMA_CPP = ("typical_p", "penalty_last_n")
_OPENAI = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "top_k", "min_p")


def path_of(ask: Ask) -> str:
    return "/v1/completions" if ask.messages is None else "/v1/chat/completions"


def body_of(ask: Ask, engine: str | None, model: str | None) -> dict[str, Any]:
    """What is sent, always as a stream: until its first words another server can take over."""
    body: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    if model is not None:
        body["model"] = model
    body |= dict(_chat(ask)) if ask.messages is not None else dict(_completion(ask))
    body |= dict(_samplers(ask, engine)) | dict(_form(ask, engine)) | dict(_limits(ask, engine))
    return body


def unsupported(what: str) -> Failure:
    return Failure(
        501,
        f"{what} is not supported by the server that answers here; leave it out",
        code="not_supported",
        param=what,
    )


def _chat(ask: Ask) -> Iterator[tuple[str, Any]]:
    yield "messages", [_message(message) for message in ask.messages or ()]
    if ask.tools:
        yield "tools", [_tool(tool) for tool in ask.tools]
        named = {"type": "function", "function": {"name": ask.tool_named}}
        yield "tool_choice", ask.tool_choice if ask.tool_named is None else named
        if not ask.parallel_tool_calls:
            yield "parallel_tool_calls", False
    if ask.logprobs is not None:
        yield "logprobs", True
        yield "top_logprobs", ask.logprobs
    for name, value in (
        ("chat_template_kwargs", ask.template_options),
        ("reasoning_effort", ask.reasoning_effort),
        ("verbosity", ask.verbosity),
    ):
        if value:
            yield name, value


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of earlier calls are text on the wire."""
    calls = [
        {
            **call,
            "function": {
                **call["function"],
                "arguments": _as_text(call["function"].get("arguments", "{}")),
            },
        }
        for call in message.get("tool_calls") or ()
    ]
    return {**message, "tool_calls": calls} if calls else dict(message)


def _as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _tool(tool: Any) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.parameters}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _completion(ask: Ask) -> Iterator[tuple[str, Any]]:
    if ask.gap is not None:
        if ask.door == "infill" or ask.gap.files or ask.gap.begun:
            raise unsupported("infill")
        yield "prompt", ask.gap.before
        yield "suffix", ask.gap.after
    else:
        prompts = [one if isinstance(one, str) else list(one) for one in ask.prompts or ()]
        yield "prompt", prompts[0] if len(prompts) == 1 else prompts
    if ask.logprobs is not None:
        yield "logprobs", ask.logprobs


def _samplers(ask: Ask, engine: str | None) -> Iterator[tuple[str, Any]]:
    given = ask.samplers
    for name in _OPENAI:
        if (value := getattr(given, name)) is not None:
            yield name, value
    if given.repeat_penalty is not None:
        yield _REPEAT.get(engine or "", "repeat_penalty"), given.repeat_penalty
    for name in _LLAMA_CPP:
        if (value := getattr(given, name)) is not None:
            if engine in _REPEAT:
                raise unsupported(name)
            yield name, value
    if given.logit_bias:
        yield "logit_bias", {str(token): bias for token, bias in given.logit_bias.items()}


def _form(ask: Ask, engine: str | None) -> Iterator[tuple[str, Any]]:
    if ask.form is None:
        return
    if ask.form.json_schema is not None:
        schema = {"name": "answer", "schema": ask.form.json_schema, "strict": True}
        yield "response_format", {"type": "json_schema", "json_schema": schema}
    elif engine == "vllm":
        yield "structured_outputs", {"grammar": ask.form.gbnf}
    elif engine == "sglang":
        raise unsupported("grammar")
    else:
        yield "grammar", ask.form.gbnf


def _limits(ask: Ask, engine: str | None) -> Iterator[tuple[str, Any]]:
    for name, value in (("seed", ask.seed), ("max_tokens", ask.max_tokens)):
        if value is not None:
            yield name, value
    if ask.stop:
        yield "stop", list(ask.stop)
    if ask.n != 1:
        yield "n", ask.n
    if ask.context_full == "slide" and engine != "parlay":
        raise unsupported("context_full")
    if ask.context_full is not None and engine == "parlay":
        yield "context_full", ask.context_full
    if ask.reasoning_budget is not None and ask.reasoning_budget >= 0:
        if engine not in _OWN:
            raise unsupported("reasoning_budget")
        yield "thinking_budget_tokens", ask.reasoning_budget
    if ask.prediction and engine == "parlay":  # elsewhere it could only change the speed
        yield "prediction", {"type": "content", "content": ask.prediction}


# -- which way -------------------------------------------------------------------------------------


def wish_of(asked: Speculation | None) -> tuple[bool | None, str | None]:
    """The client's own choice of pool, and the route it names."""
    if asked is None:
        return None, None
    for name in ("draft", "window", "mode"):
        if getattr(asked, name) is not None:
            raise BadRequest(
                f"speculation.{name} is set where the engine is started, not at a remote server;"
                " leave it out"
            )
    return asked.enabled, asked.policy


def rule_of(ask: Ask, policy: str | None, deployment: Deployment, n_prompt: int) -> Rule:
    """By the deployment's routes, unless the client names one."""
    rules = {rule.name: rule for rule in deployment.routes}
    if policy is None or policy == "auto":
        return first_match(deployment.routes, _facts(ask, n_prompt))
    if policy in ("speculate", "plain"):
        return Rule(name=policy, policy=policy)
    if policy not in rules:
        known = ", ".join(("speculate", "plain", "auto", *rules))
        raise BadRequest(f"speculation.policy {policy!r:.60} is unknown; use one of {known}")
    return rules[policy]


def _facts(ask: Ask, n_prompt: int) -> RequestFacts:
    options = ask.template_options
    thinks = options.get("enable_thinking") is True or options.get("thinking") is True
    return RequestFacts(
        endpoint=ask.door,
        model=ask.model,
        n_prompt=n_prompt,
        n_answer=ask.max_tokens or _UNSAID,
        tools=bool(ask.tools),
        grammar=ask.form is not None,
        reasoning=thinks or ask.reasoning_effort not in (None, "none"),
        code=ask.door == "infill" or any("```" in text for text in texts_of(ask)),
        headers=ask.headers,
        tag=ask.tag,
    )


def texts_of(ask: Ask) -> list[str]:
    """Everything written in the prompt."""
    found = [answers.string(message.get("content")) or "" for message in ask.messages or ()]
    found += [prompt for prompt in ask.prompts or () if isinstance(prompt, str)]
    if ask.gap is not None:
        found += [ask.gap.before, ask.gap.after]
    return found
