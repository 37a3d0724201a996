"""A comparison's figures, by hand."""

from __future__ import annotations

import hashlib

import pytest

from parlay.bench.compare import acceptance, compare
from parlay.bench.record import Sample
from parlay.reading.speculation import Speculation, pooled
from tests.bench.scripted import sample

CATEGORIES = {f"p{i}": "code" if i < 3 else "math" for i in range(6)}


def runs(ratio: float = 2.0, n_repeats: int = 5) -> list[Sample]:
    found: list[Sample] = []
    for i in range(6):
        for r in range(n_repeats):
            found.append(sample(f"p{i}", "plain", r, len(found), speed=100 + i))
            found.append(sample(f"p{i}", "fast", r, len(found), speed=(100 + i) * ratio))
    return found


def text(words: str) -> str:
    return hashlib.sha256(words.encode()).hexdigest()


def test_tokens_that_came_with_the_first_are_no_speed_up() -> None:
    """Where a draft of 50 was accepted at once, the rest may still come as fast as ever."""
    plain = sample("p0", "plain", 0, 0, speed=100.0)
    at_once = plain.model_copy(update={"arm": "fast", "n_first": 51, "decode_s": 0.5})
    assert at_once.tokens_per_second("decode") == plain.tokens_per_second("decode") == 100.0


def test_twice_as_fast_is_2x_overall_and_in_each_category() -> None:
    found = compare(runs(2.0), CATEGORIES, "plain", "fast")
    assert found.speedup is not None
    assert found.speedup.ratio == pytest.approx(2.0)
    assert found.verdict == "faster"
    assert [(c.category, c.verdict) for c in found.by_category] == [
        ("code", "faster"),
        ("math", "faster"),
    ]
    assert found.baseline_tokens_per_second == pytest.approx(102.5)
    assert found.candidate_tokens_per_second == pytest.approx(205.0)


def test_a_category_in_which_nothing_was_drafted_has_no_acceptance() -> None:
    bets, none = Speculation(drafted=40, accepted=20), Speculation(drafted=0, accepted=0)
    told = [
        s.model_copy(update={"speculation": bets if CATEGORIES[s.prompt] == "code" else none})
        for s in runs()
    ]
    found = compare(told, CATEGORIES, "plain", "fast").by_category
    assert [c.token_acceptance for c in found] == [0.5, None]


def test_clock_is_the_servers_only_where_all_answers_have_it() -> None:
    both = [s.model_copy(update={"server_decode_s": s.decode_s / 2}) for s in runs()]
    assert compare(both, CATEGORIES, "plain", "fast").clock == "server"
    one_sided = [s if s.arm == "plain" else t for s, t in zip(runs(), both, strict=True)]
    assert compare(one_sided, CATEGORIES, "plain", "fast").clock == "decode"


def test_failed_and_too_short_answers_are_listed_and_their_pairs_left_out() -> None:
    samples = runs()
    samples[1] = sample("p0", "fast", 0, 1, outcome="timeout", error="too late")
    samples[3] = sample("p0", "fast", 1, 3, n_tokens=1)
    found = compare(samples, CATEGORIES, "plain", "fast")
    assert [(f.outcome, f.repeat) for f in found.failures] == [("timeout", 0), ("too short", 1)]
    assert found.speedup is not None
    assert found.speedup.n_pairs == 28


def test_nothing_but_failures_is_no_result() -> None:
    samples = [s.model_copy(update={"outcome": "error"}) for s in runs()]
    found = compare(samples, CATEGORIES, "plain", "fast")
    assert (found.verdict, found.speedup, found.by_category) == ("no result", None, [])


def test_identical_texts_are_counted_as_a_fraction_of_prompts() -> None:
    samples = runs()
    samples[1] = samples[1].model_copy(update={"text_sha256": text("other")})
    identity = compare(samples, CATEGORIES, "plain", "fast").identity
    assert (identity.n_identical, identity.n_compared) == (5, 6)
    assert identity.baseline_repeats_itself


def test_a_baseline_that_changes_its_own_text_is_told() -> None:
    samples = runs()
    samples[0] = samples[0].model_copy(update={"text_sha256": text("other")})
    identity = compare(samples, CATEGORIES, "plain", "fast").identity
    assert not identity.baseline_repeats_itself


def test_acceptance_follows_the_definitions() -> None:
    told = Speculation(
        drafted=40, accepted=20, rounds=81, speculated_rounds=10, fully_accepted=4,
        tried_at=[10, 8], accepted_at=[8, 6],
    )  # fmt: skip
    found = acceptance([sample(speculation=told), sample(repeat=1, speculation=told)])
    assert found is not None
    assert found.generated == 202
    assert found.token_acceptance == 0.5
    assert found.sequence_acceptance == 0.4
    assert found.draft_share == pytest.approx(40 / 202, abs=1e-6)
    assert found.acceptance_length == pytest.approx(202 / 162, abs=1e-6)
    assert found.by_position == [0.8, 0.75]


def test_rounds_follow_from_accepted_tokens_where_they_are_not_told() -> None:
    found = acceptance([sample(speculation=Speculation(drafted=60, accepted=51))])
    assert found is not None
    assert found.acceptance_length == pytest.approx(101 / 50)
    assert found.sequence_acceptance is None


def test_subjects_that_tell_nothing_have_no_acceptance() -> None:
    assert acceptance([sample()]) is None
    assert pooled([]) is None


def test_pooling_does_not_invent_what_one_part_lacks() -> None:
    parts = [Speculation(drafted=1, accepted=1, rounds=3), Speculation(drafted=2, accepted=0)]
    found = pooled(parts)
    assert found is not None
    assert (found.drafted, found.accepted, found.rounds) == (3, 1, None)


def test_pairs_need_both_sides() -> None:
    found = compare([sample("p0", "plain"), sample("p1", "fast")], CATEGORIES, "plain", "fast")
    assert (found.verdict, found.identity.n_compared) == ("no result", 0)


def test_first_token_ratio_is_above_one_where_the_candidate_is_quicker() -> None:
    samples = [
        s.model_copy(update={"first_token_s": 0.05 if s.arm == "fast" else 0.1}) for s in runs()
    ]
    found = compare(samples, CATEGORIES, "plain", "fast")
    assert found.first_token is not None
    assert found.first_token.ratio == pytest.approx(2.0)
