"""Prompts that are not read twice: next turns, retries, edits, conversations without a slot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from parlay.decoding.sampling import Sampling
from parlay.engine import worker
from parlay.engine.engine import Engine
from parlay.engine.request import Mode, Request
from parlay.engine.settings import EngineSettings
from parlay.engine.slots import Copying
from tests import tiny_models
from tests.engine.test_engine import SOON, Waiting, run, settings

pytestmark = pytest.mark.usefixtures("own_cache_folder", "light_copies")

GREEDY = Sampling(temperature=0.0)
CHUNK = 32
FAMILIES = ["llama", *tiny_models.RECURRENT]
TEXT = tuple(int(t) for t in np.random.default_rng(5).integers(3, 250, 400))
PROMPT = TEXT[: 3 * CHUNK + 10]


@pytest.fixture
def light_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a copy takes is not looked at: on a busy machine one may not be worth it, and a pause
    between two requests may be long enough for another."""
    monkeypatch.setattr(worker, "_QUIET_S", SOON)
    monkeypatch.setattr(Copying, "saw_copy", lambda *_: None)
    monkeypatch.setattr(Copying, "saw_return", lambda *_: None)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("turns")

    def make(name: str) -> Path:
        path = folder / f"{name}.gguf"
        return path if path.exists() else tiny_models.WRITERS[name](path, ftype="q8_0")

    return make


def made(
    path: Path, *draft: str, slots: int = 1, cache: int = 1 << 26, mode: Mode = "faithful"
) -> EngineSettings:
    context = {"n_batch": CHUNK, "prompt_cache_bytes": cache}
    return settings(path, *draft, slots=slots, context=context, mode=mode, max_window=8)


def ask(engine: Engine, prompt: tuple[int, ...], n: int = 8, owner: str = "") -> tuple[int, ...]:
    """How much was reused, and the whole text."""
    (seq,) = run(engine, Request(prompt, n, GREEDY, owner=owner))
    return seq.n_reused, *seq.tokens


@pytest.mark.parametrize("name", tiny_models.WRITERS)
def test_the_next_turn_reads_only_what_is_new(name: str, file: Callable[[str], Path]) -> None:
    with Engine(made(file(name), "suffix")) as engine:
        _, *said = ask(engine, PROMPT)
        reused, *_ = ask(engine, (*said, *TEXT[200:220]))
    assert reused == len(said) - 1  # the last token was never read


@pytest.mark.parametrize("name", FAMILIES)
def test_the_same_prompt_again_and_an_edited_end_read_from_the_last_chunk_on(
    name: str, file: Callable[[str], Path]
) -> None:
    edited = (*PROMPT[: 3 * CHUNK + 4], *TEXT[300:309])
    with Engine(made(file(name), "suffix")) as engine:
        _, *first = ask(engine, PROMPT)
        again, *second = ask(engine, PROMPT)
        changed, *third = ask(engine, edited)
        _, *cold = ask(engine, edited, owner="another")
    everything = name == "llama"
    assert again == (len(PROMPT) - 1 if everything else 3 * CHUNK)
    assert changed == (3 * CHUNK + 4 if everything else 3 * CHUNK)
    assert (second, third) == (first, cold)


@pytest.mark.parametrize("n_new", [20, 90])
@pytest.mark.parametrize("name", tiny_models.RECURRENT)
def test_an_edited_last_message_reads_from_the_end_of_the_turn_before(
    name: str, n_new: int, file: Callable[[str], Path]
) -> None:
    with Engine(made(file(name), "suffix")) as engine:
        _, *said = ask(engine, PROMPT)
        ask(engine, (*said, *TEXT[200 : 200 + n_new]))
        reused, *edited = ask(engine, (*said, *TEXT[250 : 250 + n_new]))
        _, *cold = ask(engine, (*said, *TEXT[250 : 250 + n_new]), owner="another")
    assert reused == len(said) - 1
    assert edited == cold


@pytest.mark.parametrize("name", FAMILIES)
def test_exact_answers_go_on_from_what_was_read_and_say_what_cold_ones_do(
    name: str, file: Callable[[str], Path]
) -> None:
    with Engine(made(file(name), "suffix", mode="exact")) as engine:
        _, *said = ask(engine, PROMPT)
        for prompt in (PROMPT, (*said, *TEXT[200:220]), (*PROMPT[:100], *TEXT[300:330])):
            reused, *text = ask(engine, prompt)
            _, *cold = ask(engine, prompt, owner=str(prompt[-1]))
            assert reused >= 3 * CHUNK
            assert text == cold


def test_a_change_before_the_last_chunk_goes_back_to_an_earlier_mark(
    file: Callable[[str], Path],
) -> None:
    long = TEXT[: 9 * CHUNK + 5]
    edited = (*long[: 8 * CHUNK + 7], *TEXT[380:])
    with Engine(made(file("qwen35"), "suffix")) as engine:
        ask(engine, long)
        assert ask(engine, edited)[0] == 8 * CHUNK
        assert ask(engine, (*TEXT[300:], *TEXT[:40]))[0] == 0


@pytest.mark.parametrize("name", FAMILIES)
def test_a_conversation_that_lost_its_slot_comes_back(
    name: str, file: Callable[[str], Path]
) -> None:
    other = TEXT[150 : 150 + 2 * CHUNK]
    with Engine(made(file(name), "suffix")) as engine:
        _, *said = ask(engine, PROMPT)
        assert ask(engine, other)[0] == 0
        reused, *rest = ask(engine, (*said, 7, 8, 9))
        assert reused == len(said) - 1
        _, *cold = ask(engine, (*said, 7, 8, 9), owner="another")
        assert rest == cold
        assert ask(engine, (*other, 5))[0] > 0  # the other one waits there now


def test_what_one_owner_said_is_not_there_for_another(file: Callable[[str], Path]) -> None:
    with Engine(made(file("llama"), "suffix")) as engine:
        ask(engine, PROMPT, owner="a")
        assert ask(engine, (*PROMPT, 5), owner="b")[0] == 0
        assert ask(engine, (*PROMPT, 6), owner="c")[0] == 0
        assert ask(engine, (*PROMPT, 7), owner="a")[0] == len(PROMPT)


def test_the_cache_is_bounded_and_the_oldest_goes_first(file: Callable[[str], Path]) -> None:
    path = file("llama")
    talks = [TEXT[40 * i : 40 * i + 60] for i in range(4)]
    with Engine(made(path, "suffix")) as engine:
        for talk in talks[:2]:
            ask(engine, talk, 2)
        size = engine.slots.cache.n_bytes
    with Engine(made(path, "suffix", cache=2 * size + 1000)) as engine:
        for talk in talks:
            ask(engine, talk, 2)
        assert engine.slots.cache.n_bytes <= 2 * size + 1000
        assert len(engine.slots.cache) == 2
        assert ask(engine, (*talks[0], 9))[0] == 0
        assert ask(engine, (*talks[2], 9))[0] > 50


def test_without_a_cache_nothing_is_kept(file: Callable[[str], Path]) -> None:
    with Engine(made(file("qwen35"), "suffix", cache=0)) as engine:
        ask(engine, PROMPT)
        ask(engine, TEXT[200:280])
        assert ask(engine, PROMPT)[0] == 0
        assert engine.slots.cache.n_bytes == 0


def test_a_short_conversation_is_not_worth_a_copy(file: Callable[[str], Path]) -> None:
    with Engine(made(file("llama"), "suffix")) as engine:
        ask(engine, TEXT[:20], 4)
        ask(engine, TEXT[100:120], 4)
        assert len(engine.slots.cache) == 0


# -- at random ---------------------------------------------------------------------------------

turns = st.lists(
    st.tuples(
        st.sampled_from(("next", "retry", "edit", "new", "cancel")),
        st.integers(0, 2),  # which conversation
        st.integers(0, 7),  # the window
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize(
    ("name", "slots"),
    [*(("qwen35", 1), ("nemotron_h", 2), ("mamba", 1)), *(("gemma4", 1), ("deepseek2", 2))],
)
def test_whatever_came_before_an_answer_is_that_of_a_cold_engine(
    name: str, slots: int, file: Callable[[str], Path]
) -> None:
    _play(made(file(name), "suffix", slots=slots, cache=1 << 22))


@pytest.mark.parametrize(("name", "slots"), [("qwen35", 1), ("lfm2", 2), ("mamba", 1)])
def test_whatever_a_recurrent_drafter_has_drafted_the_text_is_that_of_a_cold_engine(
    name: str, slots: int, file: Callable[[str], Path]
) -> None:
    whole = file(name).with_name(f"{name}-whole.gguf")
    drafter = tiny_models.perturb(
        tiny_models.WRITERS[name](whole), whole.with_name(f"{name}-drafter.gguf"), noise=0.1
    )
    _play(made(file(name), str(drafter), slots=slots, cache=1 << 22))


def _play(wanted: EngineSettings) -> None:
    """Turns of three conversations at random, each beside one that nothing was kept for."""
    with Engine(wanted) as engine:
        counter = iter(range(1 << 30))

        @hypothesis_settings(max_examples=6, derandomize=True)
        @given(turns)
        def play(script: list[tuple[str, int, int]]) -> None:
            me = f"player {next(counter)}"
            talks = [PROMPT[: 40 + 30 * i] for i in range(3)]
            for step, (what, which, window) in enumerate(script):
                prompt = _prompt(what, talks[which], step)
                seq = _answer(engine, Request(prompt, 6, GREEDY, owner=me, window=window), what)
                if what == "cancel":
                    continue
                cold = Request(prompt, 6, GREEDY, owner=f"cold {next(counter)}", window=0)
                assert seq == run(engine, cold)[0].tokens
                talks[which] = tuple(seq)

        play()


def _prompt(what: str, talk: tuple[int, ...], step: int) -> tuple[int, ...]:
    new = TEXT[200 + 9 * step : 215 + 9 * step]
    if what == "edit":
        return (*talk[: len(talk) * 3 // 4], *new)
    if what == "new":
        return (*new, *talk[20:60])
    return talk if what == "retry" else (*talk, *new)[-300:]


def _answer(engine: Engine, request: Request, what: str) -> list[int]:
    if what != "cancel":
        return run(engine, request)[0].tokens
    client = Waiting()
    seq = engine.submit(request, client.take)
    seq.cancelled = True
    assert client.ended.wait(SOON)
    return []
