"""From a client's body to the body for an upstream: what is passed on, what is ours, which route.

Fields we do not know are passed on: what they mean, and whether they may stand there, is the
engine's to say. Knows no servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from parlay.deployment import Deployment
from parlay.errors import BadRequest
from parlay.front import errors as failures
from parlay.front.schema import SpeculationOptions
from parlay.reading import answers
from parlay.routing import Endpoint, RequestFacts, Rule, first_match

PATHS: dict[Endpoint, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
}
_LENGTHS = ("max_completion_tokens", "max_tokens", "n_predict")
_MAX_NAME = 512
_UNSAID = 4096  # tokens an answer may have where neither client nor deployment says
_GRAMMARS = ("grammar", "json_schema", "structured_outputs", "guided_json", "guided_regex")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, understood as far as a gateway must."""

    endpoint: Endpoint
    body: dict[str, Any]  # for the upstream, without the model's name
    model: str  # as the client calls it
    stream: bool
    wants_usage: bool
    n_chars: int  # of the prompt
    route: str
    plain: str | None  # the reason for which it must not speculate
    wants: bool | None  # the client's own choice
    # What came in another format, as it came: for engines that have that format themselves.
    original: dict[str, Any] | None = None

    def body_for(self, model: str | None, *, native: bool = False) -> dict[str, Any]:
        body = self.original if native and self.original is not None else self.body
        return body if model is None else {**body, "model": model}

    def path(self, *, native: bool) -> str:
        """Where it goes; other formats' requests go to chat, in chat's words."""
        translated = self.original is not None and not native
        return PATHS["chat" if translated else self.endpoint]


class Ratio:
    """Characters of a token, as the engines' own counts of prompts show."""

    def __init__(self) -> None:
        self._chars, self._tokens = 400.0, 100.0  # until measured: four

    def observe(self, n_chars: int, n_tokens: int | None) -> None:
        if n_tokens and n_chars:
            self._chars = 0.99 * self._chars + n_chars
            self._tokens = 0.99 * self._tokens + n_tokens

    def tokens(self, n_chars: int) -> int:
        return max(1, round(n_chars * self._tokens / self._chars))


class Asking:
    """Understands bodies under one deployment."""

    def __init__(self, deployment: Deployment, ratio: Ratio) -> None:
        self._deployment = deployment
        self._ratio = ratio

    def understand(
        self,
        endpoint: Endpoint,
        body: dict[str, Any],
        headers: Mapping[str, str],
        original: dict[str, Any] | None = None,
    ) -> Asked:
        """A request, or the reason why it is none; `original`: what chat's words stand for."""
        self._check(endpoint, body)
        wants, policy = _wish(_popped(body))
        stream = body.get("stream") is True
        usage = answers.mapping(body.get("stream_options")).get("include_usage") is True
        if stream:  # the numbers come with it; whoever did not ask for it is not shown it
            options = answers.mapping(body.get("stream_options"))
            body["stream_options"] = {**options, "include_usage": True}
        facts = self._facts(endpoint, body, headers)
        rule = self._rule(policy, facts)
        return Asked(
            endpoint=endpoint,
            body=self._limited(endpoint, body),
            model=answers.string(body.pop("model", None)) or "",
            stream=stream,
            wants_usage=usage,
            n_chars=_n_chars(body),
            route=rule.name,
            # Routes that say `auto` leave it to whoever measures, and a gateway does.
            plain=rule.reason.value if rule.policy == "plain" and not rule.auto else None,
            wants=wants,
            original=self._capped(endpoint, original),
        )

    def _capped(self, endpoint: Endpoint, original: dict[str, Any] | None) -> dict[str, Any] | None:
        """The longest answer holds for engines that are asked in another format's words, too."""
        limit = self._deployment.server.max_answer_tokens
        if original is None or limit is None:
            return original
        name = "max_tokens" if endpoint == "messages" else "max_output_tokens"
        given = original.get(name)
        return {**original, name: min(given, limit) if isinstance(given, int) else limit}

    def _check(self, endpoint: Endpoint, body: Mapping[str, Any]) -> None:
        needed = "prompt" if endpoint == "completions" else "messages"
        if not body.get(needed):
            raise failures.Failure(400, f"{needed} is missing", param=needed)
        if len(answers.string(body.get("model")) or "") > _MAX_NAME:
            raise BadRequest(f"model has more than {_MAX_NAME} characters")
        n, limit = body.get("n"), self._deployment.server.max_n
        if n is not None and type(n) is not int:  # engines may read a number in it all the same
            raise failures.Failure(400, "n must be a whole number", param="n")
        if n is not None and n > limit:
            raise BadRequest(f"n is {n}; this server makes at most {limit} answers")

    def _limited(self, endpoint: Endpoint, body: dict[str, Any]) -> dict[str, Any]:
        """The deployment's own limits and defaults, where it sets them."""
        server = self._deployment.server
        if server.max_answer_tokens is not None:
            limit = server.max_answer_tokens
            # A name one engine knows another ignores: the one that all know always stands there.
            given = {name: _within(body[name], limit) for name in _LENGTHS if name in body}
            body |= {"max_tokens": min(given.values(), default=limit), **given}
        if server.default_temperature is not None:
            body.setdefault("temperature", server.default_temperature)
        return body

    def _facts(
        self, endpoint: Endpoint, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> RequestFacts:
        form = answers.mapping(body.get("response_format")).get("type")
        thinks = answers.mapping(body.get("chat_template_kwargs")).get("enable_thinking") is True
        answer = next((body[name] for name in _LENGTHS if body.get(name)), None)
        tag = headers.get("x-parlay-tag") or answers.mapping(body.get("metadata")).get("tag")
        return RequestFacts(
            endpoint=endpoint,
            model=answers.string(body.get("model")) or "",
            n_prompt=self._ratio.tokens(_n_chars(body)),
            n_answer=answer if isinstance(answer, int) and answer > 0 else _UNSAID,
            tools=bool(body.get("tools")),
            grammar=form in ("json_object", "json_schema") or any(map(body.get, _GRAMMARS)),
            reasoning=thinks or body.get("reasoning_effort") not in (None, "none"),
            code=any("```" in text for text in _texts(body)),
            headers=headers,
            tag=answers.string(tag),
        )

    def _rule(self, policy: str | None, facts: RequestFacts) -> Rule:
        rules = {rule.name: rule for rule in self._deployment.routes}
        if policy is None or policy == "auto":
            return first_match(self._deployment.routes, facts)
        if policy in ("speculate", "plain"):
            return Rule(name=policy, policy=policy)
        if policy not in rules:
            known = ", ".join(("speculate", "plain", "auto", *rules))
            raise BadRequest(f"speculation.policy {policy!r:.60} is unknown; use one of {known}")
        return rules[policy]


def _within(wanted: object, limit: int) -> int:
    """Whatever is no number of tokens, engines may take for no limit."""
    return wanted if type(wanted) is int and 1 <= wanted <= limit else limit


def _popped(body: dict[str, Any]) -> object:
    """The wish; the engine would not know it."""
    return body.pop("speculation", None)


def _wish(value: object) -> tuple[bool | None, str | None]:
    """The client's own choice of pool, and the route it names."""
    if value is None or isinstance(value, bool):
        return value, None
    try:
        asked = SpeculationOptions.model_validate(value)
    except ValidationError:
        raise BadRequest('speculation must be true, false, or {"policy": NAME}') from None
    fixed = sorted(asked.model_fields_set - {"policy"})
    if fixed:
        raise BadRequest(
            f"speculation.{fixed[0]} is set where the engine is started, not through a gateway;"
            " leave it out"
        )
    return None, asked.policy


def _texts(body: Mapping[str, Any]) -> list[str]:
    """Everything written in the prompt."""
    found: list[str] = []
    for message in answers.listed(body.get("messages")):
        content = answers.mapping(message).get("content")
        parts = content if isinstance(content, list) else [content]
        texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
        found += [text for text in texts if isinstance(text, str)]
    prompt = body.get("prompt")
    found += [text for text in (prompt if isinstance(prompt, list) else [prompt]) if text]
    return [text for text in found if isinstance(text, str)]


def _n_chars(body: Mapping[str, Any]) -> int:
    return sum(map(len, _texts(body)))
