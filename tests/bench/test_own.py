"""The own runtime as a subject, on tiny models: cold prompts, shapes, limits, another process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from parlay.bench.lineup import Lineup, OwnOptions, quick_suite
from parlay.bench.own import OwnArm
from parlay.bench.subject import Ask, SubjectError, TimedOut
from parlay.bench.suite import Prompt, load_suite
from parlay.errors import BadRequest
from parlay.llama import library
from tests import tiny_models

TEXT = "abc abc abc abc abc abc"
PROMPT = Prompt("p", "chat", ({"role": "user", "content": TEXT},), 24)
ASK = Ask(PROMPT, 24, 0.0, 0, 300.0)


@pytest.fixture(scope="module")
def options(tiny_folder: Path) -> OwnOptions:
    """Eight bits: passes of all shapes agree, so that no price decides whether drafts may be."""
    target = tiny_models.write_llama(tiny_folder / "own-subject.gguf", ftype="q8_0")
    return OwnOptions(str(target), ("suffix",), (3,), {"context_size": 256, "threads": 1})


@pytest.fixture(scope="module")
def lineup(options: OwnOptions) -> Iterator[Lineup]:
    with Lineup(lambda line: None) as made:
        made.add_own(options)
        yield made


def arm(lineup: Lineup, name: str) -> OwnArm:
    found = lineup.arms[name]
    assert isinstance(found, OwnArm)
    return found


def test_plain_and_speculative_arms_share_one_runtime(lineup: Lineup) -> None:
    assert list(lineup.arms) == ["plain", "suffix k=3"]
    infos = [subject.info for subject in lineup.arms.values()]
    assert [i.speculates for i in infos] == [False, True]
    assert infos[0].build == infos[1].build
    assert infos[1].window == 3


def test_speculation_is_switched_by_request_and_the_text_stays(lineup: Lineup) -> None:
    plain, fast = arm(lineup, "plain").ask(ASK), arm(lineup, "suffix k=3").ask(ASK)
    assert plain.text == fast.text
    assert plain.speculation is not None and plain.speculation.drafted == 0
    assert plain.n_tokens == fast.n_tokens == 24
    assert plain.decode_s > 0 and plain.wall_s >= plain.decode_s


def test_a_schema_holds_for_every_arm_and_is_drafted_from_by_those_that_speculate(
    lineup: Lineup,
) -> None:
    properties = {"name": {"const": "x" * 12}}
    schema = {
        "type": "object",
        "properties": properties,
        "required": ["name"],
        "additionalProperties": False,  # a random model would go on for ever
    }
    ask = replace(ASK, prompt=replace(PROMPT, json_schema=schema), max_tokens=64)
    plain, fast = arm(lineup, "plain").ask(ask), arm(lineup, "suffix k=3").ask(ask)
    assert json.loads(plain.text) == {"name": "x" * 12}
    assert fast.text == plain.text
    assert plain.speculation is not None and plain.speculation.drafted == 0
    assert fast.speculation is not None and "skeleton" in "".join(fast.speculation.proposers)


def test_a_prediction_is_drafted_from_by_arms_that_speculate(lineup: Lineup) -> None:
    text = arm(lineup, "plain").ask(ASK).text
    ask = replace(ASK, prompt=replace(PROMPT, prediction=text))
    plain, fast = arm(lineup, "plain").ask(ask), arm(lineup, "suffix k=3").ask(ask)
    assert plain.text == fast.text == text
    assert plain.speculation is not None and plain.speculation.drafted == 0
    assert fast.speculation is not None and "prediction" in fast.speculation.proposers


def test_every_prompt_is_read_anew(lineup: Lineup) -> None:
    arm(lineup, "plain").warm_up(ASK)
    first, again = (arm(lineup, "plain").ask(ASK) for _ in range(2))
    assert first.n_prompt == again.n_prompt and again.text == first.text


def test_time_limit_cancels_the_answer(lineup: Lineup) -> None:
    late = Ask(PROMPT, 200, 0.0, 0, 0.0001)
    with pytest.raises(TimedOut, match=r"no whole answer after 0\.0001 s"):
        arm(lineup, "plain").ask(late)
    assert arm(lineup, "plain").ask(ASK).n_tokens == 24  # and the next one is fine


def test_another_build_answers_from_its_own_process(options: OwnOptions) -> None:
    folder = library.engine().folder
    own = replace(options, libraries=(str(folder),))
    with Lineup(lambda line: None) as made:
        made.add_own(own)
        assert list(made.arms) == ["build 1 plain", "build 1 suffix k=3"]
        subject = made.arms["build 1 suffix k=3"]
        assert subject.info.build
        subject.warm_up(ASK)
        reply = subject.ask(ASK)
        assert (reply.n_tokens, reply.finish_reason) == (24, "length")
        assert reply.speculation is not None and reply.speculation.rounds
        with pytest.raises(TimedOut):
            subject.ask(Ask(PROMPT, 200, 0.0, 0, 0.0001))


def test_a_folder_without_libraries_is_refused(options: OwnOptions, tmp_path: Path) -> None:
    own = replace(options, libraries=(str(tmp_path),))
    with pytest.raises(SubjectError), Lineup(lambda line: None) as made:
        made.add_own(own)


def test_unknown_device_is_refused(options: OwnOptions) -> None:
    own = replace(options, devices=("CUDA99",))
    with pytest.raises(BadRequest, match="no device 'CUDA99'"), Lineup(lambda line: None) as made:
        made.add_own(own)


def test_quick_suite_takes_one_prompt_of_each_category() -> None:
    suite = quick_suite(load_suite("core-12"))
    assert [p.id for p in suite.prompts] == ["code-03", "math-02", "reasoning-01", "summary-02",
                                             "chat-02"]  # fmt: skip
    assert suite.sha256 != load_suite("core-12").sha256
