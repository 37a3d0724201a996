"""From an `Ask` to requests for the engine: prompt, samplers, grammar, limits, ways to draft.

The one prompter of every door, of Python and of the command line. Knows the model's vocabulary and
template and the routes; starts nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

from msgspec import structs

from parlay.ask import Accepted, Ask, Facts, Form, Marks, Speculation
from parlay.chat.conversation import Conversation, Prompt, offered
from parlay.chat.guiding import Guiding, Wish
from parlay.chat.style import Template
from parlay.decoding.round import Fallback
from parlay.decoding.sampling import Sampling
from parlay.engine.request import ContextFull, Mode, Request
from parlay.engine.structured.grammar import Grammars
from parlay.errors import BadRequest, PromptTooLong
from parlay.llama.vocabulary import Vocabulary
from parlay.routing import RequestFacts, Rule, first_match, parse_draft

DEFAULT_TEMPERATURE = 0.8  # where neither the request nor the model's file says one
_MOST_BYTES_A_TOKEN = 16  # of text on average: beyond that a prediction is cut unread
_MANY = 1 << 64  # seeds


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSettings:
    """What a deployment says of prompts and answers."""

    temperature: float | None = None  # None: what the model's file recommends
    max_prompt_tokens: int | None = None
    max_answer_tokens: int | None = None
    context_full: ContextFull = "stop"
    routes: tuple[Rule, ...] = ()
    adaptive: bool = False  # the controller measures, so `auto` rules are only its advice
    trusted: bool = False  # control words that clients write are marks


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request, understood."""

    accepted: Accepted
    requests: tuple[Request, ...]  # one for each answer wanted


@dataclass(frozen=True, slots=True)
class _Drafting:
    """How a request is drafted for, and who chose so."""

    policy: str
    proposers: tuple[str, ...] | None = None
    window: int | None = None
    fallback: Fallback | None = None


class Prompter:
    """Understands requests for one model. A template or a grammar may take its time: whoever asks
    on an event loop does so in a thread."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        template: Template | None,
        *,
        mode: Mode,
        context_size: int,
        recommended: float | None = None,
        settings: PromptSettings | None = None,
        pressed: Callable[[], bool] = lambda: False,
    ) -> None:
        """`recommended`: the temperature that the model's file names; `pressed`: whether memory is
        short now."""
        self.settings = settings or PromptSettings()
        self.conversation = Conversation(vocabulary, template)
        self.has_template = template is not None
        self.context_size = context_size
        self._vocabulary = vocabulary
        self._grammars = Grammars(vocabulary)
        self._guiding = Guiding(self.conversation.style, vocabulary, self._grammars)
        self._mode: Mode = mode
        self._recommended = recommended
        self._pressed = pressed

    def follow(self, settings: PromptSettings) -> None:
        """Other settings from the next request on; what is known of the model stays."""
        self.settings = settings

    def facts(self, names: tuple[str, ...], n_slots: int, build: str = "") -> Facts:
        """What the parser of this model's answers needs."""
        style = self.conversation.style
        return Facts(
            names=names,
            context_size=self.context_size,
            n_slots=n_slots,
            mode=self._mode,
            form=style.form,
            marks=Marks(style.marks.open, style.marks.close),
            can_think=style.can_think,
            has_template=self.has_template,
            build=build,
        )

    def render(self, ask: Ask) -> str:
        """A conversation as the model would read it."""
        return self.conversation.text(ask)

    def count(self, ask: Ask) -> int:
        """The tokens of a prompt, however long it is."""
        return sum(len(prompt.tokens) for prompt in self.prompts(ask))

    def prepare(self, ask: Ask) -> Prepared:
        """Requests for the engine, or why it cannot be answered."""
        prompts = self.prompts(ask)
        for prompt in prompts:
            self._check(len(prompt.tokens))
        wish, accepted = self._wish(ask, prompts[0])
        constraint = self._guiding.constraints(wish)
        sampling = self._sampling(ask, accepted.seed)
        found = []
        for prompt in prompts:
            facts = self._route_facts(ask, prompt, grammar=wish.grammar is not None or wish.forced)
            drafting = self._drafting(ask.speculation, facts)
            request = self._request(ask, prompt, drafting, facts.n_answer)
            for i in range(ask.n):
                seed = (accepted.seed + i) % _MANY
                drawn = replace(sampling, seed=seed)
                found.append(replace(request, sampling=drawn, constraint=constraint()))
            accepted = structs.replace(accepted, policy=accepted.policy or drafting.policy)
        n_prompt = tuple(len(request.prompt) for request in found)
        return Prepared(structs.replace(accepted, n_prompt=n_prompt), tuple(found))

    def _wish(self, ask: Ask, prompt: Prompt) -> tuple[Wish, Accepted]:
        """What the answer must keep to, and what is said of it before it begins."""
        grammar = None if ask.form is None else self._grammar(ask.form)
        forced = ask.tool_named is not None or ask.tool_choice == "required"
        if forced and grammar is not None:
            raise BadRequest("a forced tool call cannot be combined with another grammar")
        functions, remarks = self._guiding.usable(offered(ask), forced)
        budget = ask.reasoning_budget
        if budget is not None and budget < 0:
            budget = None
        wish = Wish(grammar, functions, forced, ask.parallel_tool_calls, budget, prompt.thinking)
        accepted = Accepted(
            n_prompt=(),
            seed=secrets.randbelow(1 << 31) if ask.seed is None else ask.seed,
            temperature=self._temperature(ask),
            mode=(ask.speculation and ask.speculation.mode) or self._mode,
            policy="",
            thinking=prompt.thinking and ask.split_reasoning,
            functions=functions,
            remarks=(*self.conversation.remarks(ask), *remarks, *self._guiding.beside(wish)),
        )
        return wish, accepted

    def prompts(self, ask: Ask) -> list[Prompt]:
        """What the model is to read; it may be longer than fits."""
        if ask.messages is not None:
            return [self.conversation.prompt(ask, trusted=self.settings.trusted)]
        if ask.gap is not None:
            return [self.conversation.gap(ask.gap)]
        if not ask.prompts:
            raise BadRequest("prompt is empty; send a text or a list of tokens")
        return [self.conversation.plain(given) for given in ask.prompts]

    def _request(self, ask: Ask, prompt: Prompt, drafting: _Drafting, n_answer: int) -> Request:
        style, speculation = self.conversation.style, ask.speculation or Speculation()
        chat = ask.messages is not None
        return Request(
            prompt=prompt.tokens,
            max_tokens=n_answer,
            stop=ask.stop,
            proposers=drafting.proposers,
            window=drafting.window,
            fallback=drafting.fallback,
            thinking=prompt.thinking if chat else None,
            marks=style.marks,
            shown=style.shown(tools=bool(ask.tools)) if chat else frozenset(),
            mode=speculation.mode,
            context_full=ask.context_full or self.settings.context_full,
            logprobs=ask.logprobs,
            expected=self._expected(ask.prediction),
            memory=ask.memory,
            owner=ask.owner,
        )

    def _temperature(self, ask: Ask) -> float:
        """One for all doors: the request's, the deployment's, the model's file's, or ours."""
        said = (ask.samplers.temperature, self.settings.temperature, self._recommended)
        return next((one for one in said if one is not None), DEFAULT_TEMPERATURE)

    def _sampling(self, ask: Ask, seed: int) -> Sampling:
        given = {k: v for k, v in structs.asdict(ask.samplers).items() if v is not None}
        return Sampling(**{**given, "temperature": self._temperature(ask), "seed": seed})

    def _expected(self, prediction: str) -> tuple[int, ...]:
        """The tokens of a prediction; what the context cannot hold is not read."""
        text = prediction[: _MOST_BYTES_A_TOKEN * self.context_size]
        return tuple(self._vocabulary.continuation(text)[: self.context_size]) if text else ()

    def _check(self, n_prompt: int) -> None:
        most, size = self.settings.max_prompt_tokens, self.context_size
        if most is not None and n_prompt > most:
            raise PromptTooLong(
                f"the prompt has {n_prompt} tokens; this server takes {most}: shorten it"
            )
        if n_prompt >= size:
            raise PromptTooLong(
                f"the prompt has {n_prompt} tokens, the context holds {size}; shorten it or raise"
                " the context size"
            )

    def _grammar(self, form: Form) -> str:
        if form.json_schema is not None:
            return self._grammars.json_schema(form.json_schema)
        return self._grammars.gbnf(form.gbnf or "")

    # -- how it is drafted for -----------------------------------------------------------------

    def _route_facts(self, ask: Ask, prompt: Prompt, *, grammar: bool) -> RequestFacts:
        n_prompt = len(prompt.tokens)
        # Absent: as much as the context holds after the prompt.
        limits = [n for n in (self.settings.max_answer_tokens, ask.max_tokens) if n is not None]
        return RequestFacts(
            endpoint=ask.door,
            model=ask.model,
            n_prompt=n_prompt,
            n_answer=min(limits, default=max(1, self.context_size - n_prompt)),
            tools=bool(ask.tools),
            grammar=grammar,
            reasoning=prompt.reasoning,
            code=ask.gap is not None or _has_code(ask),
            memory_pressure=self._pressed(),
            headers=ask.headers,
            tag=ask.tag,
        )

    def _drafting(self, asked: Speculation | None, facts: RequestFacts) -> _Drafting:
        if asked is None:
            return self._by_rule(first_match(self.settings.routes, facts))
        if asked.enabled is False:
            return _Drafting("request", proposers=(), fallback=Fallback.REQUEST)
        if asked.enabled:
            return _Drafting("request")
        found = self._by_policy(asked, facts)
        proposers = found.proposers if asked.draft is None else parse_draft(asked.draft)
        if proposers == ():
            found = replace(found, fallback=Fallback.REQUEST)
        window = found.window if asked.window is None else asked.window
        return replace(found, proposers=proposers, window=window)

    def _by_policy(self, asked: Speculation, facts: RequestFacts) -> _Drafting:
        name, rules = asked.policy, {rule.name: rule for rule in self.settings.routes}
        if name is None and asked.draft is None and asked.window is None:
            return self._by_rule(first_match(self.settings.routes, facts))
        if name in (None, "speculate", "auto"):
            return _Drafting(name or "request")
        if name == "plain":
            return _Drafting("plain", fallback=Fallback.POLICY)
        if name not in rules:
            known = ", ".join(("speculate", "plain", "auto", *rules))
            raise BadRequest(f"speculation.policy {name!r:.60} is unknown; use one of {known}")
        return self._by_rule(rules[name])

    def _by_rule(self, rule: Rule) -> _Drafting:
        advice_only = rule.auto and self.settings.adaptive
        plain = rule.policy == "plain" and not advice_only
        return _Drafting(
            rule.name,
            proposers=None if rule.draft is None else parse_draft(rule.draft),
            window=rule.window,
            fallback=rule.reason if plain else None,
        )


def _has_code(ask: Ask) -> bool:
    """A fence in the conversation: code is being read or written."""
    texts = (message.get("content") for message in ask.messages or ())
    return any(isinstance(text, str) and "```" in text for text in texts)
