from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parlay.control.controller import Controller, FixedWindow, Listener
from parlay.control.prices.both import Both
from parlay.control.prices.cost import CostTable, shipped_tables
from parlay.control.profit import ProfitController
from parlay.control.trace import Decision
from parlay.decoding.round import Round
from parlay.errors import BadRequest
from parlay.replay.contest import compare, controller_named
from parlay.replay.hindsight import (
    WINDOWS,
    best_fixed,
    fixed_seconds,
    oracle_seconds,
    plain_seconds,
)
from parlay.replay.informed import seconds_when_known
from parlay.replay.recording import (
    RecordedOffer,
    Recording,
    load_recordings,
    mixed_workload,
    save_recordings,
)
from parlay.replay.replay import Replay, total
from parlay.replay.rivals import RULES, OneProposer, rival
from parlay.replay.texts import repeating
from tests.control.synthetic import table


def recording(*offers: RecordedOffer, proposer: str = "ngram", n_prompt: int = 10) -> Recording:
    return Recording("a", "made", n_prompt, "stop", {proposer: offers})


HIT, MISS, NOTHING = (
    RecordedOffer(2, (0.9, 0.9, 0.5)),
    RecordedOffer(0, (0.9, 0.9)),
    RecordedOffer(0, ()),
)


def test_a_fixed_window_costs_what_its_rounds_cost() -> None:
    """Two accepted and one of the target's own; a miss; nothing to say."""
    made = recording(HIT, MISS, MISS, MISS, NOTHING)
    costs = table(slope=0.5)
    (outcome,) = Replay([made], ("ngram",)).run(FixedWindow(2), costs)
    assert outcome.n_tokens == 5 and outcome.n_rounds == 3
    assert outcome.seconds == pytest.approx(2.0 + 2.0 + 1.0)


def test_changed_shapes_are_charged() -> None:
    made = recording(HIT, MISS, MISS, MISS, NOTHING)
    (outcome,) = Replay([made], ("ngram",)).run(FixedWindow(2), table(0.5, change=0.25))
    assert outcome.seconds == pytest.approx(5.0 + 2 * 0.25)  # to three rows, and back to one


def test_a_drafter_is_charged_for_catching_up_and_for_what_it_drops() -> None:
    made = recording(RecordedOffer(1, (0.9, 0.9)), MISS, MISS, proposer="model", n_prompt=9)
    costs = table(slope=0.0, drafter=0.1)
    assert costs.drafter is not None
    (outcome,) = Replay([made], ("model",)).run(FixedWindow(2), costs)
    # It reads the prompt and the first token, then one token a round.
    drafting = costs.drafter.catch_up_s(10) + 0.1 + costs.drafter.catch_up_s(1) + 0.1
    assert outcome.seconds == pytest.approx(2.0 + drafting)


def test_the_priced_path_equals_the_replay() -> None:
    recordings = mixed_workload()[:6]
    for costs in (table(0.2, 0.1), table(0.1, 0.05, change=0.3)):
        for proposer in ("ngram", "suffix", "model", "pruned"):
            for k in (1, 3, 8, 16):
                controller = OneProposer(FixedWindow(k), proposer)
                for made in recordings:
                    (outcome,) = Replay([made], (proposer,)).run(controller, costs)
                    expected = fixed_seconds(made, costs, proposer, k)
                    assert outcome.seconds == pytest.approx(expected)


def test_the_oracle_is_never_slower_than_any_fixed_window_or_the_controller() -> None:
    proposers = ("ngram", "suffix", "model")
    for costs in (table(0.2, 0.1), table(0.1, 0.05, change=0.3)):
        for made in mixed_workload()[:6]:
            oracle = oracle_seconds(made, costs, proposers)
            assert oracle <= best_fixed([made], costs, proposers)[2] + 1e-9
            (outcome,) = Replay([made], proposers).run(ProfitController(costs.copy()), costs)
            assert oracle <= outcome.seconds + 1e-9


def test_a_controller_that_knows_the_text_lies_between_the_oracle_and_plain_decoding() -> None:
    made, costs, proposers = mixed_workload()[0], table(slope=0.05), ("ngram", "suffix")
    known = seconds_when_known(made, costs, proposers)
    assert oracle_seconds(made, costs, proposers) <= known < plain_seconds(made, costs)


def test_a_replay_is_deterministic() -> None:
    replay = Replay(mixed_workload()[:5], ("ngram", "suffix", "model"))
    first = replay.run(ProfitController(table()), table())
    assert replay.run(ProfitController(table()), table()) == first


def test_exact_passes_are_padded_and_no_draft_reaches_into_another_class() -> None:
    """Three rows at least, four at most; from the third position on ten, where there is room."""
    made = recording(*(RecordedOffer(8, (0.99,) * 8) for _ in range(12)))
    seen = Seen()

    def rows_at(_recording: Recording, position: int) -> tuple[int, int]:
        return (3, 4) if position < 3 else (10, 16)

    Replay([made], ("ngram",)).run(FixedWindow(8), table(0.1), [seen], rows_at=rows_at)
    assert [(r.n_drafted, r.n_pass_rows) for r in seen.rounds] == [(2, 3), (8, 10)]


def test_several_sequences_share_passes() -> None:
    recordings = mixed_workload()[:6]
    replay = Replay(recordings, ("suffix",))
    alone = replay.run_together(FixedWindow(0), table(0.1), 1)
    together = replay.run_together(FixedWindow(0), table(0.1), 3)
    assert alone.n_tokens == together.n_tokens == sum(r.n_tokens for r in recordings)
    assert together.seconds < 0.6 * alone.seconds


def test_recordings_survive_their_file(tmp_path: Path) -> None:
    recordings = mixed_workload()[:2]
    for name in ("a.jsonl", "a.jsonl.gz"):
        save_recordings(tmp_path / name, {"made": "here"}, recordings)
        assert load_recordings(tmp_path / name) == recordings


def test_the_shipped_recordings_are_what_the_proof_needs() -> None:
    recordings = mixed_workload()
    assert len(recordings) >= 40
    wanted = {"code", "math", "reasoning", "summary", "chat", "extraction"}
    assert wanted <= {r.category for r in recordings}
    for r in recordings:
        assert {"ngram", "suffix", "model"} <= set(r.offers)
        for offers in r.offers.values():
            assert len(offers) == r.n_tokens
            assert all(o.n_accepted <= len(o.confidence) <= 16 for o in offers)
            assert all(0 <= c <= 1 for o in offers for c in o.confidence)


@pytest.mark.parametrize("text", ["", "{}", '{"parlay_recording": 7}', "[1]\n[2]", "\x00"])
def test_what_is_no_recording_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(text + '\n{"id": 3}')
    with pytest.raises(BadRequest) as caught:
        load_recordings(path)
    assert "\n" not in caught.value.message


def test_a_trace_is_told_to_be_one(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    made = Decision(0.0, 0, 1, "suffix", 4, 4, 2, 3, 0, 9.5, None, None, "")
    path.write_text(json.dumps(asdict(made)) + "\n")
    with pytest.raises(BadRequest, match=r"generate --trace .* name a shipped one, such as code"):
        load_recordings(path)
    path.write_text("{}\n")
    with pytest.raises(BadRequest, match="no recording of what proposers"):
        load_recordings(path)


@pytest.mark.parametrize("name", [*RULES, "fixed-3"])
def test_every_rival_plays_to_the_end(name: str) -> None:
    recordings = mixed_workload()[:3]
    for proposer in ("suffix", "model"):
        outcomes = Replay(recordings, (proposer,)).run(rival(name, proposer), table(0.1, 0.05))
        assert [o.n_tokens for o in outcomes] == [r.n_tokens for r in recordings]


def test_plus_two_minus_one_does_that() -> None:
    always = recording(*(RecordedOffer(16, (0.9,) * 16),) * 400)
    (outcome,) = Replay([always], ("ngram",)).run(rival("plus-two-minus-one", "ngram"), table())
    # 5, 7, 9, 11, 13, 15, then 16 for good.
    assert outcome.n_rounds == 6 + -(-(400 - 66) // 17)


def test_a_comparison_holds_what_it_says() -> None:
    recordings = mixed_workload()[:4]
    found = compare(recordings, table(0.2), ("ngram", "suffix"), controller_named("none", "ngram"))
    assert found.mean_over("plain_s") == pytest.approx(1.0)
    assert found.total("seconds") == pytest.approx(found.n_tokens)
    assert set(found.fixed_s) == {(s, k) for s in ("ngram", "suffix") for k in WINDOWS}
    record = found.as_dict()
    assert record["tokens_per_second"]["plain"] == record["tokens_per_second"]["controller"] == 1.0
    with pytest.raises(BadRequest):
        controller_named("nobody", "ngram")


# -- drafting ahead ---------------------------------------------------------------------------


def ahead_table(*, slowdown: float = 1.1, token: float = 0.25) -> CostTable:
    """Every pass takes 1 s alone; a token 0.1 s alone and `token` beside a pass."""
    costs = table(slope=0.0, drafter=0.1)
    assert costs.drafter is not None
    costs.drafter.both = Both({2: slowdown}, {2: token})
    return costs


def test_a_hit_hides_the_next_draft_and_a_miss_waits_for_the_token_under_way() -> None:
    offers = [RecordedOffer(9, (0.9,) * 9)] * 5 + [RecordedOffer(0, (0.9,) * 9)] * 6
    made = recording(*offers, proposer="model", n_prompt=9)
    costs, seen = ahead_table(token=0.2), Seen()
    (outcome,) = Replay([made], ("model",)).run(FixedWindow(4), costs, [seen])
    first, second, third, *_ = seen.rounds
    # Beside a pass of 1.1 s there is time for more than five tokens, but no use for them: one is
    # the guess, and four are the next draft.
    assert (first.n_ahead, second.n_ahead) == (0, 4) and first.beside
    assert second.n_drafted_ahead == 5
    assert second.timing.draft_s == 0.0
    assert second.timing.verify_s == pytest.approx(1.1 * costs.curve(1, 1).steady[5])
    assert second.n_accepted == 0  # it was hidden all the same, and nothing of it is left
    assert third.n_ahead == 0 and third.timing.draft_s == pytest.approx(0.4)
    assert outcome.n_tokens == made.n_tokens


def test_the_token_under_way_when_a_pass_ends_is_waited_for_where_it_is_wanted() -> None:
    offers = [RecordedOffer(9, (0.9,) * 9)] * 5 + [RecordedOffer(0, (0.9,) * 9)] * 6
    made = recording(*offers, proposer="model", n_prompt=9)
    costs, seen = ahead_table(), Seen()
    Replay([made], ("model",)).run(FixedWindow(4), costs, [seen])
    _, second, third, *_ = seen.rounds
    # 4.4 tokens beside the pass: the guess, three that are ready, 0.6 of the fourth to wait for.
    assert second.n_drafted_ahead == 4 and second.n_ahead == 3
    assert second.timing.draft_s == pytest.approx(0.6 * 0.1)
    assert third.timing.draft_s == pytest.approx(0.6 * 0.1 + 0.4)


def test_a_draft_that_holds_to_the_end_of_what_was_recorded_is_gone_on_with() -> None:
    """What the drafter takes for the target's own token is the first one of its next draft."""
    made = recording(*[RecordedOffer(4, (0.9,) * 4)] * 11, proposer="model", n_prompt=9)
    seen = Seen()
    Replay([made], ("model",)).run(FixedWindow(4), ahead_table(token=0.2), [seen])
    assert [r.n_ahead for r in seen.rounds[:2]] == [0, 4]


def test_prices_of_both_at_once_make_the_controller_draft_ahead_where_it_pays() -> None:
    recordings = mixed_workload()[:24]
    speeds = {}
    for both in (None, Both({2: 1.03}, {2: 0.0015})):
        record = {
            "parlay_costs": 1,
            "target": [{"context": 1, "sequences": 1, "steady_ms": {"1": 9, "2": 12, "17": 12.5}}],
            "drafter": {"steady_ms": {"1": 1.3, "32": 1.6, "512": 3}, "single_steps": True},
        }
        costs = CostTable.from_dict(record)
        assert costs.drafter is not None
        costs.drafter.both = both
        replay, seen = Replay(recordings, ("model",)), Seen()
        outcomes = replay.run(ProfitController(costs.copy()), costs, [seen])
        speeds[both is not None] = total(outcomes).tokens_per_second
        assert any(r.beside for r in seen.rounds) == (both is not None)
    assert speeds[True] > 1.01 * speeds[False]


def as_measured(name: str, token_s: float) -> CostTable:
    """A shipped table, whose drafter also reads a whole text and is at work beside the target."""
    record = next(c for c in shipped_tables() if c.name == name).to_dict()
    for prices in (record["drafter"]["steady_ms"], record["drafter"]["changed_ms"]):
        prices["256"] = 6.5
    costs = CostTable.from_dict(record)
    assert costs.drafter is not None
    costs.drafter.both = Both({2: 1.02}, {2: token_s})
    return costs


# A token beside a pass as it was on an H200, and by how much the controller is to be faster.
@pytest.mark.parametrize(
    ("name", "token_s", "windows", "gain"),
    [
        ("gpu-27b-q5_0-settling", 0.0036, (2, 3, 5), 1.07),
        ("gpu-14b-f16", 0.00185, (5, 8, 16), 1.07),
    ],
)
def test_with_drafts_ahead_the_controller_beats_every_fixed_window_ahead(
    name: str, token_s: float, windows: Sequence[int], gain: float
) -> None:
    costs, recordings = as_measured(name, token_s), mixed_workload()[:48]

    def seconds(controller: Controller, *proposers: str) -> float:
        return total(Replay(recordings, proposers).run(controller, costs)).seconds

    taken = seconds(ProfitController(costs.copy()), "suffix", "model")
    assert min(seconds(FixedWindow(k), "model") for k in windows) > gain * taken


def holding(seed: int, rate: float) -> Recording:
    """A text most of whose drafts hold, and a drafter that knows how sure it is."""
    rng = np.random.default_rng(seed)
    sure = np.clip(rng.beta(2.5 * rate, 2.5 * (1.0 - rate), 160), 0.02, 0.999)
    right = (rng.random(160) < sure).tolist()
    offers = [
        RecordedOffer(
            [*right[at : at + 16], False].index(False),
            tuple(np.maximum(sure[at : at + 16], 0.5).tolist()),
        )
        for at in range(128)
    ]
    return recording(*offers, proposer="model", n_prompt=150)


def test_drafting_ahead_the_controller_keeps_up_with_the_best_window_where_drafts_hold() -> None:
    """Tokens that are waited for cannot be hidden beside the pass: a draft that is sure of itself
    went on far beyond the window that is best, and lost a twentieth."""
    costs = as_measured("gpu-27b-q5_0-settling", 0.0036)
    texts = [holding(i, (0.75, 0.8, 0.87, 0.9, 0.95, 0.98)[i % 6]) for i in range(24)]
    learned = ProfitController(costs.copy())
    Replay(texts[:6], ("model",)).run(learned, costs)

    def seconds(controller: Controller) -> float:
        return total(Replay(texts[6:], ("model",)).run(controller, costs)).seconds

    taken = seconds(ProfitController(costs.copy(), learned.to_dict()))
    assert 0.985 * taken < min(seconds(FixedWindow(k)) for k in (2, 3, 5))


def test_where_drafts_hold_the_widest_window_is_soon_believed_in() -> None:
    """Few tokens are rejected at any one position, and the last ones are hardly reached: each on
    its own, they were taken for worse than they are for long, and a twentieth was lost."""
    costs, rng = as_measured("gpu-27b-q5_0-settling", 0.0036), np.random.default_rng(0)
    right = [(rng.random(144) < 0.97).tolist() for _ in range(16)]
    texts = [
        recording(
            *(
                RecordedOffer([*text[at : at + 16], False].index(False), (0.97,) * 16)
                for at in range(128)
            ),
            proposer="model",
            n_prompt=150,
        )
        for text in right
    ]

    def seconds(controller: Controller) -> float:
        return total(Replay(texts, ("model",), reads_along=True).run(controller, costs)).seconds

    assert 0.97 * seconds(ProfitController(costs.copy())) < seconds(FixedWindow(16))


def test_a_copied_passage_is_taken_from_the_text_although_the_model_has_drafted_ahead() -> None:
    """Its tokens are worth as much from either, and a long draft for nothing has more of them."""
    costs, text = as_measured("gpu-27b-q5_0-settling", 0.0036), repeating(400, 24)
    right = tuple(RecordedOffer(16, (0.97,) * 16) for _ in range(text.n_tokens))
    both = replace(text, offers={**text.offers, "model": right})
    learned = ProfitController(costs.copy())
    Replay(mixed_workload()[:24], ("suffix", "model")).run(learned, costs)

    def seconds(*proposers: str) -> float:
        controller = ProfitController(costs.copy(), learned.to_dict())
        return total(Replay([both], proposers).run(controller, costs)).seconds

    assert seconds("suffix", "model") < 1.05 * seconds("suffix")


def rounds_of_model(name: str) -> list[Round]:
    costs, seen = next(c for c in shipped_tables() if c.name == name), Seen()
    replay = Replay(mixed_workload()[:24], ("suffix", "model"))
    replay.run(ProfitController(costs.copy()), costs, [seen])
    return [r for r in seen.rounds if r.proposer == "model"]


def test_a_draft_model_s_short_drafts_are_verified_by_the_fast_kernels_of_a_wide_pass() -> None:
    """Rows that nobody reads cost less there: drafts were as long as the fast pass is wide, or in a
    slow one. That took a twelfth of the time."""
    rounds = [r for r in rounds_of_model("gpu-14b-f16") if r.position < 80]  # it may be that wide
    assert sum(r.n_drafted < 8 for r in rounds) > 50
    assert all(r.n_pass_rows >= 17 for r in rounds if r.n_drafted >= 4)


def test_a_draft_model_s_pass_is_not_padded_to_stay_in_the_last_shape() -> None:
    """Its drafts have any width: there padding lost more than changes of shape cost."""
    rounds = rounds_of_model("gpu-27b-q5_0-settling")
    assert len(rounds) > 100 and not any(r.n_padding for r in rounds)


class Seen:
    """A listener that keeps everything."""

    def __init__(self) -> None:
        self.rounds: list[Round] = []

    def observe(self, rounds: Sequence[Round]) -> None:
        self.rounds += rounds


# -- a block drafter from nothing ----------------------------------------------------------------

# In shape a hybrid of 27B on an H200 with a DFlash drafter; what reading states takes is estimated.
BLOCK: dict[str, Any] = {
    "parlay_costs": 1,
    "name": "hybrid and block",
    "target": [
        {
            "context": 256,
            "sequences": 1,
            "steady_ms": {"1": 10.8, "4": 14.0, "8": 20.0, "9": 24.3, "16": 25.8},
            "changed_ms": {"1": 15.6, "4": 19.0, "8": 24.5, "9": 30.0, "16": 31.5},
            "settling_ms": 14.3,
        }
    ],
    "undoing": {"free_tokens": 15, "ms": 16.0},
    "drafter": {
        "steady_ms": {"1": 0.8, "8": 0.9, "32": 1.5},
        "single_steps": False,
        "longest": 15,
        "block": {"steady_ms": {"2": 2.3, "9": 2.35, "16": 2.4}},
    },
}


def blocks(right: float, n_answers: int, seed: int = 0, n_tokens: int = 80) -> list[Recording]:
    """Answers whose every position has a block, each token of it right with the same chance."""
    rng, found = random.Random(seed), []
    for i in range(n_answers):
        n_right = [
            next((k for k in range(15) if rng.random() >= right), 15) for _ in range(n_tokens)
        ]
        offers = tuple(RecordedOffer(n, (right,) * 15) for n in n_right)
        found.append(Recording(f"block-{i}", "made", 30, "length", {"model": offers}))
    return found


def over_plain(made: Sequence[Recording], heard: Sequence[Listener] = ()) -> float:
    costs = CostTable.from_dict(BLOCK)
    outcomes = Replay(made, ("model",)).run(ProfitController(costs.copy()), costs, heard)
    return sum(plain_seconds(r, costs) for r in made) / sum(o.seconds for o in outcomes)


@pytest.mark.parametrize(("right", "least"), [(0.7, 1.1), (0.8, 1.4), (0.9, 1.9)])
def test_a_block_drafter_is_looked_at_before_it_is_bet_on_and_pays_in_short_answers(
    right: float, least: float
) -> None:
    """Its first bet may lose four passes, more than 80 tokens allow: it was never made, or once in
    three answers and in vain. A look takes a third of a pass."""
    found = [over_plain(blocks(right, 8, seed)) for seed in range(4)]
    assert sum(found) / 4 > least


@pytest.mark.parametrize("right", [0.1, 0.3, 0.5])
def test_a_block_drafter_that_does_not_pay_costs_little(right: float) -> None:
    assert over_plain(blocks(right, 16)) > 0.98


def test_a_look_takes_its_time_and_none_of_the_pass() -> None:
    class Rounds:
        def __init__(self) -> None:
            self.all: list[Round] = []

        def observe(self, rounds: Sequence[Round]) -> None:
            self.all += rounds

    heard = Rounds()
    over_plain(blocks(0.2, 4), [heard])
    looks = [r for r in heard.all if r.reason == "look"]
    assert looks
    assert {(r.n_rows, r.n_pass_rows, r.n_drafted) for r in looks} == {(1, 1, 0)}
    assert looks[0].n_dropped == 15
    assert all(r.timing.draft_s > 2e-3 for r in looks)


def test_a_prompt_that_is_read_beside_the_target_is_not_caught_up_with() -> None:
    costs, texts = as_measured("gpu-14b-f16", 0.00185), [holding(i, 0.95) for i in range(6)]

    def seconds(*, along: bool) -> float:
        return total(Replay(texts, ("model",), along).run(FixedWindow(8), costs)).seconds

    assert costs.drafter is not None
    each_s = costs.drafter.catch_up_s(texts[0].n_prompt + 1) - costs.drafter.catch_up_s(1)
    assert seconds(along=False) - seconds(along=True) == pytest.approx(len(texts) * each_s)


def with_shipped_drafter() -> CostTable:
    """Prices of an 8B beside the shipped draft model, as a start on an H200 measured them."""
    record = next(c for c in shipped_tables() if c.name == "gpu-8b-q5_0-streams").to_dict()
    record["drafter"] = {
        "steady_ms": {"1": 0.66, "2": 2.25, "8": 2.51, "32": 3.71, "256": 10.76},
        "changed_ms": {"1": 1.88, "2": 2.25, "8": 2.51, "32": 3.71, "256": 10.76},
        "settling_ms": 0.74,
        "single_steps": True,
        "both": {"slowdown": {"2": 1.047, "17": 1.063}, "ms": {"2": 0.495, "17": 0.36}},
    }
    return CostTable.from_dict(record)


def drafted_by(name: str) -> list[Recording]:
    """Recorded answers of 128 tokens with one of the recorded draft models only."""
    answers = [each.first(128) for each in mixed_workload()]
    return [replace(each, offers={"model": each.offers[name]}) for each in answers]


def test_a_draft_model_nothing_is_known_of_is_bet_on_once_looks_have_shown_it_right() -> None:
    """Its first bet is dear: it has to read the text, and the shape changes there and back."""
    answers, costs = drafted_by("pruned"), with_shipped_drafter()
    replay = Replay(answers, ("model",))
    fixed = min(total(replay.run(FixedWindow(k), costs)).seconds for k in (2, 3, 5))
    found = total(replay.run(ProfitController(costs.copy()), costs)).seconds
    plain_s = sum(plain_seconds(each, costs) for each in answers)
    assert fixed < plain_s / 1.2
    assert found < fixed / 0.9


def test_looks_at_a_draft_model_that_is_always_wrong_cost_less_than_one_percent() -> None:
    wrong = [
        replace(each, offers={"model": tuple(RecordedOffer(0, (0.95,) * 16) for _ in offers)})
        for each in drafted_by("pruned")
        for offers in each.offers.values()
    ]
    costs = with_shipped_drafter()
    found = total(Replay(wrong, ("model",)).run(ProfitController(costs.copy()), costs)).seconds
    assert found < sum(plain_seconds(each, costs) for each in wrong) / 0.99
