"""From a body to requests for the worker: prompt, samplers, grammar, and how to bet.

Knows the schema, the conversation and the routes; starts nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from parlay.decoding.constraint import Constraint
from parlay.decoding.round import Fallback
from parlay.deployment import Deployment
from parlay.engine.request import Mode, Request
from parlay.engine.structured.grammar import Grammars
from parlay.errors import BadRequest, PromptTooLong
from parlay.parlay import parse_draft
from parlay.routing import Endpoint, RequestFacts, Rule, first_match
from parlay.server.api.conversation import Conversation, Prompt, functions_of
from parlay.server.api.guiding import Guiding, Wish
from parlay.server.api.template_style import Style
from parlay.server.api.tools import ToolFunction
from parlay.web.schema import (
    ChatRequest,
    CompletionRequest,
    InfillRequest,
    NamedTool,
    Options,
    SpeculationOptions,
)
from parlay.web.unknown import Told, refuse_unfollowed, tell, unknown_fields

_MAX_PROMPTS = 128
# The names under which bodies say how long an answer may be; the first that is given holds.
_LENGTHS = ("max_completion_tokens", "max_tokens", "n_predict")
_MOST_BYTES_A_TOKEN = 16  # of text on average: beyond that a prediction is cut unread


@dataclass(frozen=True, slots=True)
class Plan:
    """A request, understood."""

    endpoint: Endpoint
    requests: tuple[Request, ...]  # one for each answer wanted
    policy: str
    seed: int
    mode: Mode
    thinking: bool = False
    functions: tuple[ToolFunction, ...] = ()  # that the answer may call
    style: Style = Style()  # noqa: RUF009 - frozen, so sharing it is safe
    told: tuple[Told, ...] = ()  # what of the request is not followed


@dataclass(frozen=True, slots=True)
class Wager:
    """How a request bets."""

    policy: str
    proposers: tuple[str, ...] | None = None
    window: int | None = None
    fallback: Fallback | None = None


class Planner:
    """Understands bodies for one engine under one deployment."""

    def __init__(
        self,
        deployment: Deployment,
        conversation: Conversation,
        grammars: Grammars,
        *,
        mode: Mode,
        context_size: int,
        adaptive: bool,
        pressed: Callable[[], bool],
    ) -> None:
        """`pressed`: whether memory is short now."""
        self._deployment = deployment
        self._conversation = conversation
        self._grammars = grammars
        self._guiding = Guiding(conversation.style, conversation.vocabulary, grammars)
        self._mode: Mode = mode
        self._context_size = context_size
        self._pressed = pressed
        self._adaptive = adaptive  # the controller measures, so `auto` rules are only its advice

    # A template or a grammar may take its time: whoever asks does so in a thread.

    def chat(
        self, body: ChatRequest, headers: Mapping[str, str], endpoint: Endpoint = "chat"
    ) -> Plan:
        prompt = self.prompt(body)
        forced = isinstance(body.tool_choice, NamedTool) or body.tool_choice == "required"
        grammar = self._grammar(body)
        if forced and grammar is not None:
            raise BadRequest("a forced tool call cannot be combined with another grammar")
        functions, told = self._guiding.usable(functions_of(body), forced)
        budget = body.reasoning_budget if (body.reasoning_budget or -1) >= 0 else None
        wish = Wish(grammar, functions, forced, body.parallel_tool_calls, budget, prompt.thinking)
        facts = self._facts(endpoint, body, prompt, headers, grammar)
        facts = replace(
            facts, grammar=facts.grammar or forced, tools=bool(body.tools), code=_has_code(body)
        )
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        plan = self._plan(body, facts, prompt, self._guiding.constraints(wish), logprobs)
        return replace(
            plan,
            thinking=prompt.thinking and body.reasoning_format == "auto",
            functions=functions,
            style=self._conversation.style,
            told=(
                *self.told(body, endpoint),
                *self._conversation.told(body),
                *told,
                *self._guiding.beside(wish),
            ),
        )

    def prompt(self, body: ChatRequest) -> Prompt:
        """What the model is to read; it may be longer than fits."""
        special = self._deployment.server.parse_special_in_messages
        return self._conversation.prompt(body, parse_special=special)

    def text(self, body: ChatRequest) -> str:
        """A conversation as the model would read it."""
        return self._conversation.text(body)

    def completion(self, body: CompletionRequest, headers: Mapping[str, str]) -> Plan:
        """One prompt or several; each is answered as if it came alone."""
        grammar = self._grammar(body)
        constraint = self._guiding.constraints(Wish(grammar))
        body = body.model_copy(update={"seed": _seed(body)})
        plans = []
        for given in _prompts(body.prompt):
            prompt = self._completed(given, body.suffix)
            facts = self._facts("completions", body, prompt, headers, grammar)
            plans.append(self._plan(body, facts, prompt, constraint, body.logprobs))
        return replace(
            plans[0],
            requests=tuple(request for plan in plans for request in plan.requests),
            told=self.told(body, "completions"),
        )

    def _completed(self, given: str | list[int], suffix: str | None) -> Prompt:
        if suffix is None:
            return self._conversation.plain(given)
        return self._conversation.gap(given, suffix)

    def infill(self, body: InfillRequest, headers: Mapping[str, str]) -> Plan:
        gap = self._conversation.gap(body.input_prefix, body.input_suffix, body.input_extra or ())
        begun = self._conversation.vocabulary.tokenize(body.prompt, bos=False, special=False)
        prompt = Prompt((*gap.tokens, *begun))
        grammar = self._grammar(body)
        facts = self._facts("infill", body, prompt, headers, grammar)
        facts = replace(facts, code=True)
        constraint = self._guiding.constraints(Wish(grammar))
        plan = self._plan(body, facts, prompt, constraint, None)
        return replace(plan, told=self.told(body, "infill"))

    def told(self, body: Options, endpoint: Endpoint) -> tuple[Told, ...]:
        """What of a body is not followed; some of it is refused instead."""
        refuse_unfollowed(body.model_extra or {})
        return (
            *self.unknown(unknown_fields(body), type(body)),
            *self._shortened(body, endpoint),
        )

    def _shortened(self, body: Options, endpoint: Endpoint) -> Iterator[Told]:
        """Where more tokens were asked for than this server answers with."""
        most = self._deployment.server.max_answer_tokens
        given = ((name, getattr(body, name, None)) for name in _LENGTHS)
        name, wanted = next(((name, n) for name, n in given if n), ("", 0))
        if most is not None and wanted > most:
            name = "max_output_tokens" if endpoint == "responses" else name
            yield Told(name, f"{name} is {wanted}; this server answers with {most} tokens at most")

    def unknown(self, names: Seq[str], kind: type[Options] = ChatRequest) -> tuple[Told, ...]:
        """What is said about unknown fields, where they are not refused."""
        if not names:
            return ()
        refuse = self._deployment.server.unknown_fields == "refuse"
        return tell(names, sorted(kind.model_fields), refuse=refuse)

    def _facts(
        self,
        endpoint: Endpoint,
        body: ChatRequest | CompletionRequest | InfillRequest,
        prompt: Prompt,
        headers: Mapping[str, str],
        grammar: str | None,
    ) -> RequestFacts:
        return RequestFacts(
            endpoint=endpoint,
            model=body.model,
            n_prompt=len(prompt.tokens),
            n_answer=self._n_answer(body.n_answer, len(prompt.tokens)),
            grammar=grammar is not None,
            reasoning=prompt.reasoning,
            memory_pressure=self._pressed(),
            headers=headers,
            tag=headers.get("x-parlay-tag") or (body.metadata or {}).get("tag"),
        )

    def _plan(
        self,
        body: Options,
        facts: RequestFacts,
        prompt: Prompt,
        constraint: Callable[[], Constraint | None],
        logprobs: int | None,
    ) -> Plan:
        self._check(body, len(prompt.tokens))
        style = self._conversation.style
        wager = self._wager(body.speculation, facts)
        wish = body.speculation
        asked = wish if isinstance(wish, SpeculationOptions) else SpeculationOptions()
        seed = _seed(body)
        expected = self._expected(body)
        requests = tuple(
            Request(
                prompt=prompt.tokens,
                max_tokens=facts.n_answer,
                sampling=body.sampling(
                    self._deployment.server.default_temperature, (seed + i) % (1 << 64)
                ),
                stop=body.stops,
                proposers=wager.proposers,
                window=wager.window,
                fallback=wager.fallback,
                thinking=prompt.thinking if isinstance(body, ChatRequest) else None,
                marks=style.marks,
                shown=style.shown(tools=facts.tools)
                if isinstance(body, ChatRequest)
                else frozenset(),
                mode=asked.mode,
                context_full=body.context_full or self._deployment.runtime.context_full,
                logprobs=logprobs,
                expected=expected,
                memory=body.prompt_cache_key or "",
                constraint=constraint(),
            )
            for i in range(body.n)
        )
        mode = asked.mode or self._mode
        return Plan(facts.endpoint, requests, wager.policy, seed, mode)

    def _expected(self, body: Options) -> tuple[int, ...]:
        """The tokens of a prediction; what the context cannot hold is not read."""
        if body.prediction is None:
            return ()
        text = body.prediction.text[: _MOST_BYTES_A_TOKEN * self._context_size]
        return self._conversation.continuation(text)[: self._context_size]

    def _check(self, body: Options, n_prompt: int) -> None:
        server = self._deployment.server
        if body.n > server.max_n:
            raise BadRequest(f"n is {body.n}; this server makes at most {server.max_n} answers")
        limit = min(server.max_prompt_tokens or self._context_size, self._context_size - 1)
        if n_prompt > limit:
            raise PromptTooLong(
                f"the prompt has {n_prompt} tokens; this server takes {limit}: shorten it"
            )

    def _n_answer(self, wanted: int | None, n_prompt: int) -> int:
        """Absent: as much as the context holds after the prompt."""
        limits = [self._deployment.server.max_answer_tokens, wanted]
        room = max(1, self._context_size - n_prompt)
        given = [limit for limit in limits if limit is not None]
        return min(given) if given else room

    def _grammar(self, body: Options) -> str | None:
        wanted = []
        form = body.response_format
        if form is not None and form.type == "json_object":
            schema = form.schema_ or {"type": "object"}
            wanted.append(self._grammars.json_schema(schema))
        if form is not None and form.type == "json_schema":
            schema = form.json_schema.schema_ if form.json_schema else form.schema_ or {}
            wanted.append(self._grammars.json_schema(schema))
        if body.json_schema is not None:
            wanted.append(self._grammars.json_schema(body.json_schema))
        if body.grammar:
            wanted.append(self._grammars.gbnf(body.grammar))
        if len(wanted) > 1:
            raise BadRequest("give one of response_format, json_schema and grammar, not several")
        return wanted[0] if wanted else None

    # -- how to bet -----------------------------------------------------------

    def _wager(self, asked: bool | SpeculationOptions | None, facts: RequestFacts) -> Wager:
        if asked is False:
            return Wager("request", proposers=(), fallback=Fallback.REQUEST)
        if asked is True:
            return Wager("request")
        if asked is None:
            return self._by_rule(first_match(self._deployment.routes, facts))
        wager = self._by_policy(asked, facts)
        proposers = wager.proposers if asked.draft is None else parse_draft(asked.draft)
        if proposers == ():
            wager = replace(wager, fallback=Fallback.REQUEST)
        window = wager.window if asked.window is None else asked.window
        return replace(wager, proposers=proposers, window=window)

    def _by_policy(self, asked: SpeculationOptions, facts: RequestFacts) -> Wager:
        name = asked.policy
        if name is None and asked.draft is None and asked.window is None:
            return self._by_rule(first_match(self._deployment.routes, facts))
        if name in (None, "speculate", "auto"):
            return Wager(name or "request")
        if name == "plain":
            return Wager("plain", fallback=Fallback.POLICY)
        rules = {rule.name: rule for rule in self._deployment.routes}
        if name not in rules:
            known = ", ".join(("speculate", "plain", "auto", *rules))
            raise BadRequest(f"speculation.policy {name!r:.60} is unknown; use one of {known}")
        return self._by_rule(rules[name])

    def _by_rule(self, rule: Rule) -> Wager:
        advice_only = rule.auto and self._adaptive
        plain = rule.policy == "plain" and not advice_only
        return Wager(
            rule.name,
            proposers=None if rule.draft is None else parse_draft(rule.draft),
            window=rule.window,
            fallback=rule.reason if plain else None,
        )


def _seed(body: Options) -> int:
    return body.seed if body.seed is not None and body.seed >= 0 else secrets.randbelow(1 << 31)


def _prompts(given: str | list[int] | list[str] | list[list[int]]) -> list[str | list[int]]:
    """Each prompt, whether one was sent or several."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise BadRequest("prompt is empty; send a text or a list of tokens")
    tokens = [token for token in given if isinstance(token, int)]
    if tokens:
        return [tokens]
    several = [one for one in given if not isinstance(one, int)]
    if len(several) > _MAX_PROMPTS:
        raise BadRequest(f"prompt holds {len(several)} prompts; send {_MAX_PROMPTS} at most")
    return several


def _has_code(body: ChatRequest) -> bool:
    """A fence in the conversation: code is being read or written."""
    texts = (m.content for m in body.messages if isinstance(m.content, str))
    return any("```" in text for text in texts)
