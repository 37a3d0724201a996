"""Rules that choose how a request decodes: first match wins.

Knows facts about a request (its shape, its tools, its tag), never its text, and no models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from parlay.decoding.round import Fallback

Endpoint = Literal["chat", "completions", "responses", "messages", "infill"]
Policy = Literal["speculate", "plain"]


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What the rules may look at."""

    endpoint: Endpoint
    model: str = ""
    n_prompt: int = 1
    n_answer: int = 1  # at most; what the request allows
    tools: bool = False
    grammar: bool = False
    reasoning: bool = False
    code: bool = False
    memory_pressure: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case
    tag: str | None = None


class When(BaseModel):
    """Conditions; all that are given must hold."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoint: Endpoint | None = None
    model: str | None = None  # a name or a pattern with *
    min_prompt_tokens: int | None = Field(None, ge=0)
    max_prompt_tokens: int | None = Field(None, ge=0)
    min_answer_tokens: int | None = Field(None, ge=0)
    max_answer_tokens: int | None = Field(None, ge=0)
    min_prompt_to_answer: float | None = Field(None, ge=0)
    tools: bool | None = None
    grammar: bool | None = None
    reasoning: bool | None = None
    code: bool | None = None
    memory_pressure: bool | None = None
    header: dict[str, str] | None = None  # each name with its value or a pattern with *
    tag: str | None = None

    def holds(self, facts: RequestFacts) -> bool:
        return self._names_hold(facts) and self._sizes_hold(facts) and self._flags_hold(facts)

    def _names_hold(self, facts: RequestFacts) -> bool:
        wanted = {k.lower(): v for k, v in (self.header or {}).items()}
        return (
            self.endpoint in (None, facts.endpoint)
            and (self.model is None or fnmatchcase(facts.model, self.model))
            and (self.tag is None or fnmatchcase(facts.tag or "", self.tag))
            and all(fnmatchcase(facts.headers.get(k, ""), v) for k, v in wanted.items())
        )

    def _sizes_hold(self, facts: RequestFacts) -> bool:
        return (
            (self.min_prompt_tokens or 0) <= facts.n_prompt
            and (self.max_prompt_tokens is None or facts.n_prompt <= self.max_prompt_tokens)
            and (self.min_answer_tokens or 0) <= facts.n_answer
            and (self.max_answer_tokens is None or facts.n_answer <= self.max_answer_tokens)
            and (self.min_prompt_to_answer or 0) <= facts.n_prompt / max(1, facts.n_answer)
        )

    def _flags_hold(self, facts: RequestFacts) -> bool:
        names = ("tools", "grammar", "reasoning", "code", "memory_pressure")
        return all(getattr(self, name) in (None, getattr(facts, name)) for name in names)


class Rule(BaseModel):
    """One line of the decision table."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    when: When = When()
    policy: Policy = "speculate"
    reason: Fallback = Fallback.POLICY  # told with each plain round
    auto: bool = False  # a controller that measures may speculate all the same
    draft: str | None = None  # the proposers to use; absent: all that are loaded
    window: int | None = Field(None, ge=0)


# The decision table. Plain by default: a long prompt with a short answer (its time is the
# prompt's), reasoning (low acceptance), and no room in memory for a drafter.
DEFAULT_RULES: tuple[Rule, ...] = (
    Rule(
        name="memory",
        when=When(memory_pressure=True),
        policy="plain",
        reason=Fallback.MEMORY,
    ),
    Rule(
        name="reasoning",
        when=When(reasoning=True),
        policy="plain",
        reason=Fallback.REASONING,
        auto=True,
    ),
    Rule(
        name="prompt_heavy",
        when=When(min_prompt_tokens=1024, min_prompt_to_answer=16),
        policy="plain",
        reason=Fallback.PROMPT_HEAVY,
        auto=True,
    ),
    Rule(name="agent", when=When(tools=True)),
    Rule(name="code", when=When(code=True)),
    Rule(name="chat"),
)


def first_match(rules: Iterable[Rule], facts: RequestFacts) -> Rule:
    """The rule that applies; without any, the request speculates."""
    return next((rule for rule in rules if rule.when.holds(facts)), Rule(name="default"))


def parse_draft(text: str) -> tuple[str, ...]:
    """`none` or names and paths with commas between."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    return () if names in ((), ("none",)) else names
