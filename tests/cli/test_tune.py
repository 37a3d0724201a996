"""`parlay tune` from end to end on tiny models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parlay.cli.tune import _verdict
from parlay.deployment import load_deployment
from parlay.errors import BadRequest, ModelFileError, ParlayError
from parlay.pairing.manifest import user_manifest
from parlay.tuning.candidates import Way
from parlay.tuning.outcome import TOO_LATE, Outcome, Row
from parlay.tuning.race import Race
from tests import tiny_models
from tests.cli.runner import call
from tests.hub.loopback import Hub


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARLAY_CONFIG", str(tmp_path / "config"))
    prompts = [{"prompt": f"{word} and so on"} for word in ("one", "two")]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    return tmp_path


def test_a_race_ends_with_a_table_and_a_deployment(
    here: Path, tiny_llama: Path, tiny_drafter: Path
) -> None:
    done = call(
        "tune", tiny_llama, "--minutes", 10, "--suite", "mine.jsonl", "-n", 8,
        "--context-size", 512, "--drafter", tiny_drafter, "--json",
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert done.exit_code == (1 if found["winner"] == "plain" else 0), done.output
    rows = {row["candidate"]: row for row in found["candidates"]}
    assert rows["suffix"]["identical"] == rows["suffix"]["compared"] > 0
    made = load_deployment(here / "speculative-deploy.yaml", environ={})
    assert made.model.target == str(tiny_llama)
    assert (made.model.drafter == "none") == (found["winner"] == "plain")
    assert bool(user_manifest().pairs) == (found["winner"] != "plain")


def test_a_log_is_asked_again_as_it_was_read(here: Path, tiny_llama: Path) -> None:
    rows = [
        {"request_id": str(i), "prompt": f"the {i} and the", "policy": "chat"} for i in range(2)
    ]
    (here / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = call(
        "tune", tiny_llama, "--minutes", 10, "--log", "log.jsonl", "-n", 8, "-c", 512, "--json"
    )
    assert done.exit_code in (0, 1), done.output
    assert json.loads(done.stdout)["prompts"] == 2


def test_a_folder_that_is_not_there_is_told_before_the_race(here: Path, tiny_llama: Path) -> None:
    done = call("tune", tiny_llama, "--out", "nowhere/deploy.yaml")
    assert "make it first" in str(done.exception)


def test_a_deployment_written_by_hand_is_not_written_over(here: Path, tiny_llama: Path) -> None:
    (here / "speculative-deploy.yaml").write_text("server: {api_keys_file: keys}\n")
    done = call("tune", tiny_llama)
    assert isinstance(done.exception, BadRequest) and "--out" in done.exception.message
    assert "keys" in (here / "speculative-deploy.yaml").read_text()


@pytest.mark.parametrize("winner", [None, Way("suffix", "suffix")])
def test_candidates_that_were_not_raced_are_told_with_the_verdict(
    winner: Way | None,
) -> None:
    rows = (Row("suffix", "wins", 1.2, 1.1, 1.3), Row("ngram", TOO_LATE), Row("x", TOO_LATE))
    verdict = _verdict(Outcome(rows, winner)).plain
    assert verdict.endswith("2 of 3 were not raced: give more --minutes")
    assert "not raced" not in _verdict(Outcome(rows[:1], winner)).plain


def test_from_a_name_on_the_hub_to_a_deployment(
    here: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target and what could draft for it are fetched and raced; the winner is written down."""
    target = tiny_models.write_llama(here / "Tiny-7B-Instruct-Q8_0.gguf", n_embd=256, n_layers=8)
    sibling = tiny_models.write_llama(here / "Tiny-0.5B-Instruct-Q4_0.gguf")
    hub.add("acme/Tiny-7B-Instruct-GGUF", target)
    hub.add("acme/Tiny-0.5B-Instruct-GGUF", sibling)
    for path in (target, sibling):
        path.unlink()
    wins = "Tiny-0.5B-Instruct-Q4_0"  # whatever it takes here: no random model surely drafts well
    monkeypatch.setattr(Race, "winner", property(lambda _race: wins))
    done = call(
        "tune", "acme/Tiny-7B-Instruct-GGUF:Q8_0", "--fetch", "--minutes", 10,
        "--suite", "mine.jsonl", "-n", 8, "-c", 512, "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["winner"] == wins
    made = load_deployment(here / "speculative-deploy.yaml", environ={})
    assert made.model.target == "acme/Tiny-7B-Instruct-GGUF:Q8_0"
    assert made.model.drafter == "acme/Tiny-0.5B-Instruct-GGUF:Q4_0"
    assert user_manifest().pairs


def test_what_is_no_model_is_not_raced_and_leaves_no_deployment(
    here: Path, tiny_llama: Path
) -> None:
    (here / "cut.gguf").write_bytes(tiny_llama.read_bytes()[:5000])
    for name in ("nowhere.gguf", "cut.gguf"):
        done = call("tune", name, "--suite", "mine.jsonl")
        assert isinstance(done.exception, ModelFileError) and name in done.exception.message
    assert not (here / "speculative-deploy.yaml").exists()


def test_a_named_drafter_that_is_no_model_is_told_before_the_race(
    here: Path, tiny_llama: Path
) -> None:
    for name in ("nowhere.gguf", "mine.jsonl", "nobody-has-this"):
        done = call("tune", tiny_llama, "--suite", "mine.jsonl", "--drafter", name)
        assert isinstance(done.exception, ParlayError) and name in done.exception.message
    assert not (here / "speculative-deploy.yaml").exists()
