"""Routes: the shipped decision table, and rules of one's own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parlay.decoding.round import Fallback
from parlay.routing import DEFAULT_RULES, RequestFacts, Rule, When, first_match

CHAT = RequestFacts(endpoint="chat", n_prompt=100, n_answer=200)


@pytest.mark.parametrize(
    ("facts", "name", "reason"),
    [
        (CHAT, "chat", None),
        (replace(CHAT, tools=True), "agent", None),
        (replace(CHAT, code=True), "code", None),
        (replace(CHAT, n_prompt=4000, n_answer=100), "prompt_heavy", Fallback.PROMPT_HEAVY),
        (replace(CHAT, n_prompt=4000, n_answer=1000), "chat", None),
        (replace(CHAT, n_prompt=500, n_answer=1), "chat", None),
        (replace(CHAT, reasoning=True), "reasoning", Fallback.REASONING),
        (replace(CHAT, grammar=True), "chat", None),
        (replace(CHAT, memory_pressure=True, grammar=True), "memory", Fallback.MEMORY),
    ],
)
def test_the_decision_table(facts: RequestFacts, name: str, reason: Fallback | None) -> None:
    rule = first_match(DEFAULT_RULES, facts)
    assert rule.name == name
    assert (rule.reason if rule.policy == "plain" else None) == reason


def test_only_missing_memory_cannot_be_overridden_by_a_controller_that_measures() -> None:
    plain = [rule for rule in DEFAULT_RULES if rule.policy == "plain"]
    assert {rule.name for rule in plain if not rule.auto} == {"memory"}


@pytest.mark.parametrize(
    ("when", "facts", "holds"),
    [
        (When(endpoint="completions"), CHAT, False),
        (When(model="big-*"), replace(CHAT, model="big-27b"), True),
        (When(model="big-*"), replace(CHAT, model="small"), False),
        (When(tag="batch"), replace(CHAT, tag="batch"), True),
        (When(tag="batch"), CHAT, False),
        (When(header={"X-Team": "red*"}), replace(CHAT, headers={"x-team": "reds"}), True),
        (When(header={"X-Team": "red*"}), CHAT, False),
        (When(min_prompt_tokens=101), CHAT, False),
        (When(max_prompt_tokens=100), CHAT, True),
        (When(min_answer_tokens=200, max_answer_tokens=200), CHAT, True),
        (When(min_prompt_to_answer=0.6), CHAT, False),
        (When(tools=False), CHAT, True),
        (When(tools=False), replace(CHAT, tools=True), False),
    ],
)
def test_each_condition(when: When, facts: RequestFacts, holds: bool) -> None:
    assert when.holds(facts) is holds


def test_the_first_rule_that_matches_wins_and_none_means_speculate() -> None:
    rules = (Rule(name="a", when=When(tools=True)), Rule(name="b"), Rule(name="c"))
    assert first_match(rules, CHAT).name == "b"
    assert first_match(rules[:1], CHAT).policy == "speculate"
