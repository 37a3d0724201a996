"""An answer that says exact depends on model, build, device, settings, prompt and seed alone.

Each test breaks one way in which it might depend on more, and sees equal bits or `exact: false`.
Log-probabilities are compared to the bit, on a tiny model with K-quants, whose passes differ.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from parlay import store
from parlay.backend.slot_files import SlotFiles
from parlay.engine.engine import Engine
from parlay.engine.exact.choice import ExactChoice
from parlay.engine.exact.probe import probe_whole
from parlay.engine.exact.shapes import Inexact
from parlay.engine.request import Mode, Request
from parlay.engine.sequence import Sequence as Answering
from parlay.errors import BadRequest
from parlay.llama import library
from tests.engine.rig import Rig, exact_class, plain, whole_class
from tests.engine.test_engine import PROBE, SOON, Waiting, run, settings
from tests.requantise import requantise

pytestmark = pytest.mark.usefixtures("own_cache_folder")

EXACT: dict[str, Any] = {"mode": "exact", "exact_class": "4", "context": {"context_size": 2048}}
LENGTHS = (40, 300, 1500)


@pytest.fixture(scope="module")
def target(tiny_wide: Path, tiny_folder: Path) -> Path:
    return requantise(tiny_wide, tiny_folder / "earned-q4_k_m.gguf", "q4_k_m")


def prompt(length: int, first: int = 3) -> tuple[int, ...]:
    return tuple((first + 7 * i * i) % 240 + 3 for i in range(length))


def asked(length: int, first: int = 3, **options: Any) -> Request:
    return Request(prompt(length, first), max_tokens=12, logprobs=2, **options)


Bits = list[tuple[int, float]]


def bits(engine: Engine, request: Request) -> Bits:
    """The tokens and their log-probabilities."""
    client = Waiting()
    seq = engine.submit(request, client.take)
    assert client.ended.wait(SOON)
    assert seq.exact, seq.inexact
    return scored(client)


def scored(client: Waiting) -> Bits:
    found = [piece.logprob for piece in client.pieces if piece.logprob is not None]
    return [(one.token, one.logprob) for one in found]


@pytest.fixture(scope="module")
def cold(target: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Bits]:
    """Without proposers, each prompt asked of an engine that has read nothing before."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARLAY_CACHE", str(tmp_path_factory.mktemp("cold")))
        for length in LENGTHS:
            with Engine(settings(target, **EXACT)) as engine:
                found[length] = bits(engine, asked(length))
    return found


def test_asked_again_with_drafts_an_answer_has_the_bits_of_a_cold_one(
    target: Path, cold: dict[int, Bits]
) -> None:
    with Engine(settings(target, "suffix", **EXACT)) as engine:
        assert engine.exact.name == "4"
        for length in LENGTHS:
            for _ in ("cold", "warm", "warm again"):
                assert bits(engine, asked(length)) == cold[length]
    assert engine.exact.places >= {0, 1, 3}  # longer texts were tried when they came up


def test_what_another_prompt_left_in_the_cache_changes_nothing(
    target: Path, cold: dict[int, Bits]
) -> None:
    with Engine(settings(target, "suffix", **EXACT)) as engine:
        for read in (prompt(300)[:201], (*prompt(300), 9, 9), prompt(299)):
            run(engine, Request(read, max_tokens=5))
            assert bits(engine, asked(300)) == cold[300]


def test_of_a_slot_saved_by_an_engine_that_reads_in_other_chunks_nothing_is_reused(
    target: Path, tmp_path: Path
) -> None:
    firm = []
    for chunk in (128, 64):
        with Engine(settings(target, "suffix", prompt_chunk=chunk, **EXACT)) as engine:
            files = SlotFiles(engine, tmp_path, 1 << 30)
            if chunk == 128:
                run(engine, asked(300))
                asyncio.run(files.save(0, "one", ""))
            asyncio.run(files.restore(0, "one", ""))
            firm.append(engine.slots.all[0].n_firm)
    assert firm == [256, 0]


def test_what_a_faithful_answer_left_in_the_cache_is_not_reused(
    target: Path, cold: dict[int, Bits]
) -> None:
    with Engine(settings(target, "suffix", slots=2, **EXACT)) as engine:
        run(engine, asked(300, mode="faithful"), asked(300, mode="faithful"))
        assert bits(engine, asked(300)) == cold[300]


def test_a_second_turn_has_the_bits_of_a_cold_one(target: Path) -> None:
    """What was decoded was read in other passes than a prompt is: it is read again."""
    with Engine(settings(target, "suffix", **EXACT)) as engine:
        (first,) = run(engine, Request(prompt(340), max_tokens=60))
        assert first.n_generated == 60  # past the end of a chunk
        turn = Request((*first.tokens, 9, 9), max_tokens=12, logprobs=2)
        warm = bits(engine, turn)
    with Engine(settings(target, **EXACT)) as engine:
        assert bits(engine, turn) == warm


def test_a_second_turn_of_a_text_with_kernels_of_its_own_for_prompts_has_the_bits_of_a_cold_one(
    tiny_wide: Path, tmp_path: Path
) -> None:
    """Deep in a text prompts are read otherwise than answers, whose passes agree among them."""
    target = requantise(tiny_wide, tmp_path / "q8_0.gguf", "q8_0")
    exact: dict[str, Any] = {"mode": "exact", "context": {"context_size": 2048}}
    with Engine(settings(target, "suffix", **exact)) as engine:
        assert engine.exact.prompts
        (first,) = run(engine, Request(prompt(900), max_tokens=30))
        (second,) = run(engine, Request((*first.tokens, *prompt(400, 5)), max_tokens=60))
        assert second.n_reused == 929  # all of it: up to here nothing is read apart
        turn = Request((*second.tokens, *prompt(50, 7)), max_tokens=12, logprobs=2)
        warm = bits(engine, turn)
    with Engine(settings(target, **exact)) as engine:
        assert bits(engine, turn) == warm


def test_a_second_turn_of_a_chat_with_kernels_of_its_own_for_messages_has_the_bits_of_a_cold_one(
    tiny_wide: Path, tmp_path: Path
) -> None:
    """What others say is read otherwise than answers are, of which nothing is read again."""
    target = requantise(tiny_wide, tmp_path / "q8_0.gguf", "q8_0")
    exact: dict[str, Any] = {"mode": "exact", "context": {"context_size": 2048}}
    with Engine(settings(target, "suffix", **exact)) as engine:
        (first,) = run(engine, Request(message(engine, 300, 3), max_tokens=150))
        (second,) = run(engine, Request(said(engine, first, 200), max_tokens=150))
        assert second.n_reused >= len(first.tokens) - 1
        turn = Request(said(engine, second, 50), max_tokens=12, logprobs=2)
        warm = bits(engine, turn)
        engine.slots.erase(0)
        assert bits(engine, turn) == warm
    with Engine(settings(target, **exact)) as engine:
        assert bits(engine, turn) == warm


def message(engine: Engine, length: int, first: int) -> tuple[int, ...]:
    """A user's message of so many tokens, as the template writes it."""
    tokenize = engine.model.vocabulary.tokenize
    opened, closed = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
    return (*tokenize(opened), *prompt(length, first), *tokenize(closed))


def said(engine: Engine, answer: Answering, length: int) -> tuple[int, ...]:
    """What was said, and a message after it."""
    ends = engine.model.vocabulary.ends
    tokens = answer.tokens[:-1] if answer.tokens[-1] in ends else answer.tokens
    end = engine.model.vocabulary.tokenize("<|im_end|>\n")
    return (*tokens, *end, *message(engine, length, 5))


def test_what_a_faithful_answer_read_by_other_kernels_is_not_reused(
    tiny_wide: Path, tmp_path: Path
) -> None:
    """Passes agree whatever their rows, but not whatever their kernels."""
    target = requantise(tiny_wide, tmp_path / "q8_0.gguf", "q8_0")
    exact: dict[str, Any] = {"mode": "exact", "context": {"context_size": 2048}}
    with Engine(settings(target, "suffix", **exact)) as engine:
        assert engine.exact.prompts
        own = bits(engine, asked(120))
        engine.slots.erase(0)
        run(engine, asked(120, mode="faithful"))
        assert bits(engine, asked(120)) == own


def test_what_a_slid_answer_left_in_the_cache_is_not_reused(
    target: Path, cold: dict[int, Bits]
) -> None:
    small = {**EXACT, "context": {"context_size": 512}}
    with Engine(settings(target, **small)) as engine:
        own = bits(engine, asked(300))
    with Engine(settings(target, "suffix", **small)) as engine:
        long = Request(prompt(300), max_tokens=260, context_full="slide")
        (slid,) = run(engine, long)
        assert slid.inexact is Inexact.SLIDE
        assert bits(engine, asked(300)) == own
    assert own == cold[300]


@pytest.mark.parametrize("kind", ["q4_k_m", "q8_0"])
def test_as_one_of_four_an_answer_has_the_bits_it_has_alone(
    kind: str, tiny_wide: Path, tiny_folder: Path
) -> None:
    """In one width, where they take turns, and where all shapes agree and they share passes."""
    target = requantise(tiny_wide, tiny_folder / f"earned-{kind}.gguf", kind)
    pinned = {**EXACT, "exact_class": "4"}
    requests = [asked(length, i) for i, length in enumerate((40, 41, 300, 600))]
    with Engine(settings(target, **pinned)) as engine:
        alone = [bits(engine, request) for request in requests]
    with Engine(settings(target, "suffix", slots=4, **pinned)) as engine:
        clients = [Waiting() for _ in requests]
        for request, client in zip(requests, clients, strict=True):
            engine.submit(request, client.take)
        assert all(client.ended.wait(SOON) for client in clients)
    for client, own in zip(clients, alone, strict=True):
        assert scored(client) == own


# -- exact: false, with the reason ---------------------------------------------------------------


def spoiled(rig: Rig, request: Request) -> Inexact | None:
    (seq,) = rig.run(request)
    return seq.inexact


def test_a_text_that_slid_is_not_exact() -> None:
    request = Request((1, 2, 3), max_tokens=40, context_full="slide")
    assert spoiled(Rig(context_size=24), request) is Inexact.SLIDE


def test_a_pass_outside_the_class_spoils_an_answer() -> None:
    rig = Rig(mode="faithful", exact=exact_class(1), window=3)
    assert spoiled(rig, Request((1, 2, 3), max_tokens=9)) is Inexact.SHAPE


def test_a_length_at_which_nobody_tried_the_class_is_passed_in_plain_passes() -> None:
    found = replace(exact_class(1, 3), places=frozenset({0}))
    rig = Rig(exact=found, window=2, context_size=600, scout=lambda own, _placed: own)
    (seq,) = rig.run(Request((1, 2, 3), max_tokens=300))
    widths = {start: rows for start, rows in rig.passes if start > 2}
    assert seq.exact
    assert {rows for start, rows in widths.items() if start < 254} == {3}
    assert {rows for start, rows in widths.items() if start >= 256} == {1}


def test_a_text_that_was_read_again_after_a_failed_pass_is_not_exact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the rest of a pass can be cut off nothing is read again, and nothing changes."""
    request = Request((1, 2, 3), max_tokens=9)
    for cut, reason in ((True, None), (False, Inexact.RECOVERY)):
        rig = Rig(window=3)
        seq = rig.add(request)
        for _ in range(2):
            rig.loop.step()
        if not cut:
            monkeypatch.setattr(rig.loop._slots, "keep", partial(_read_again, rig))
        rig.target.fail_next = 1
        rig.finish()
        assert (seq.error, seq.inexact) == (None, reason)
        assert rig.text(seq) == plain(request)


def _read_again(rig: Rig, seq_id: int, _length: int) -> int:
    rig.target.clear(seq_id)
    return 0


def test_with_one_cache_for_all_nothing_is_exact(target: Path) -> None:
    unified = settings(target, "suffix", slots=2, context={"unified": True})
    with Engine(unified) as engine:
        assert engine.mode == "faithful"
        (seq,) = run(engine, asked(40, mode="exact"))
    assert seq.inexact is Inexact.UNIFIED


def test_while_reading_states_changes_sums_nothing_is_exact() -> None:
    rig = Rig()
    rig.loop.spoiled = Inexact.STATES
    assert spoiled(rig, Request((1, 2, 3), max_tokens=4)) is Inexact.STATES


# -- records ------------------------------------------------------------------------------------


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every probe."""
    made: list[int] = []

    def spy(*arguments: Any, **options: Any) -> Any:
        made.append(1)
        return probe_whole(*arguments, **options)

    monkeypatch.setattr(PROBE, spy)
    return made


def record() -> Path:
    (path,) = (store.cache_folder() / "exact").glob("*.json")
    return path


def with_digest(text: str) -> str:
    """As another build would have written it."""
    content = json.loads(text)
    content["class"]["digest"] = "0" * 24
    return json.dumps(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "{",
        lambda text: '{"format": 1}',
        lambda text: "[1]",
        with_digest,
        lambda text: text.replace('"class"', '"case"'),
    ],
)
def test_a_damaged_or_foreign_record_is_measured_again(
    target: Path, probed: list[int], damage: Callable[[str], str]
) -> None:
    with Engine(settings(target, "suffix")) as engine:
        name = engine.exact.name
    record().write_text(damage(record().read_text()))
    with Engine(settings(target, "suffix")) as engine:
        assert engine.exact.name == name
    assert len(probed) == 2


def test_two_builds_of_one_version_do_not_share_a_record(
    target: Path, probed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for build in ("one", "two", "one"):
        monkeypatch.setattr(library, "build", lambda build=build: build)
        with Engine(settings(target, "suffix")):
            pass
    assert len(probed) == 2


def test_the_class_is_chosen_once(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine(settings(target, "suffix", mode="exact")) as engine:
        name = engine.exact.name
    monkeypatch.setattr(ExactChoice, "_cost", lambda _self, _price, width: abs(width - 3) % 7)
    for draft in (("suffix",), ()):  # without proposers, in the same class
        with Engine(settings(target, *draft, mode="exact")) as engine:
            assert engine.exact.name == name


def test_a_class_that_is_not_here_is_refused_with_those_that_are(target: Path) -> None:
    with pytest.raises(BadRequest, match=r"no exact class '99' here; there are: ") as refused:
        Engine(settings(target, "suffix", exact_class="99"))
    assert "\n" not in str(refused.value)


TEXT = tuple(range(3, 20))  # two chunks of eight, and one token


def test_chunks_read_in_company_are_not_reused_and_those_read_alone_are() -> None:
    modes: tuple[tuple[Mode, int], ...] = (("faithful", 0), ("exact", 16))
    for mode, n_reused in modes:
        shared = mode == "faithful"
        rig = Rig(exact=exact_class(1), mode=mode, slots=3, chunk=8, unified=shared)
        rig.add(Request((1, 2), max_tokens=60))
        for _ in range(2):  # somebody decodes, so that prompts are read in chunks
            rig.loop.step()
        rig.run(Request(TEXT, max_tokens=2), Request(TEXT, max_tokens=2))
        (again,) = rig.run(Request(TEXT, max_tokens=2, mode="exact"))
        assert (again.n_reused, again.exact) == (n_reused, True)


def test_of_an_earlier_turn_only_whole_chunks_of_its_prompt_are_reused() -> None:
    """What was decoded was read in other passes than a prompt is."""
    rig = Rig(exact=exact_class(1, 3), chunk=8)
    (first,) = rig.run(Request(TEXT, max_tokens=20))
    (second,) = rig.run(Request((*first.tokens, 1), max_tokens=2))
    assert (second.n_reused, second.exact) == (16, True)


WHOLE = whole_class(64)  # prompts' chunks agree with it, whatever their size


def test_a_prompt_read_in_a_pass_wider_than_any_chunk_is_not_reused() -> None:
    """Alone in faithful mode a prompt is read at once; only chunks were ever tried."""
    for n_tokens, n_reused in ((17, 0), (8, 7)):
        rig = Rig(exact=WHOLE, mode="faithful", chunk=8)
        rig.run(Request(TEXT[:n_tokens], max_tokens=2))
        (again,) = rig.run(Request(TEXT[:n_tokens], max_tokens=2, mode="exact"))
        assert (again.n_reused, again.exact) == (n_reused, True)


def test_prompts_that_were_joined_in_one_pass_are_not_reused() -> None:
    rig = Rig(exact=WHOLE, mode="faithful", slots=2, chunk=8)
    rig.run(Request(TEXT[:6], max_tokens=2), Request(TEXT[6:12], max_tokens=2))
    assert (6, 6) in rig.target.shapes  # one pass for both
    for text in (TEXT[:6], TEXT[6:12]):
        (again,) = rig.run(Request(text, max_tokens=2, mode="exact"))
        assert (again.n_reused, again.exact) == (0, True)


def test_an_answer_that_is_told_while_the_next_pass_runs_knows_what_its_last_one_was() -> None:
    """On a GPU a pass is counted during the next one; the last one of an answer has none."""
    rig = Rig(exact=exact_class(1), window=0)
    rig.target.steady = True
    seq = rig.add(Request(TEXT, max_tokens=3))
    while seq.n_generated < 2:
        rig.loop.step()
    assert seq.exact
    rig.loop.spoiled = Inexact.STATES
    rig.loop.step()
    assert seq.retired and seq.inexact is Inexact.STATES


def test_what_is_counted_a_pass_later_is_firm_as_far_as_it_is_at_once() -> None:
    for steady in (False, True):
        rig = Rig(exact=exact_class(1, 3), chunk=8)
        rig.target.steady = steady
        (first,) = rig.run(Request(TEXT, max_tokens=20))
        (second,) = rig.run(Request((*first.tokens, 1), max_tokens=2))
        assert (second.n_reused, second.exact) == (16, True)
