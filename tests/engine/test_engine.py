"""The engine on tiny real models: exact windows, every kind of cache, and nothing left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parlay.ask import Accepted
from parlay.chat.parser import RawText
from parlay.decoding.sampling import Sampling
from parlay.decoding.span import Span
from parlay.decoding.verdict import Origin
from parlay.engine.engine import Engine
from parlay.engine.exact.choice import ExactChoice
from parlay.engine.exact.probe import Budget, Walker, probe_whole
from parlay.engine.request import Request
from parlay.engine.sequence import Piece
from parlay.engine.sequence import Sequence as Answering
from parlay.engine.settings import EngineSettings
from parlay.engine.worker import Worker
from parlay.errors import (
    BadRequest,
    Closed,
    LoadError,
    ParlayError,
    PromptTooLong,
    RollbackUnsupported,
    VocabularyMismatch,
)
from parlay.llama.context import Context
from parlay.llama.library import C
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.llama.undo import Rollback
from parlay.llama.vocabulary import Vocabulary
from parlay.parlay import Stream
from parlay.proposers.draft_model import DraftModel
from tests import tiny_models
from tests.requantise import requantise
from tests.serving import PATIENCE_S

pytestmark = pytest.mark.usefixtures("own_cache_folder")

SOON = PATIENCE_S
PROBE = "parlay.engine.exact.choice.probe_whole"
rng = np.random.default_rng(7)
PROMPTS = [tuple(int(t) for t in rng.integers(3, 250, 12 + i)) for i in range(4)]


@pytest.fixture(scope="session")
def files(tiny_wide: Path, tiny_folder: Path) -> Callable[[str], Path]:
    """A tiny model by name, such as "q4_k_m" (wide) or "mamba-q8_0"."""

    def file(name: str) -> Path:
        path = tiny_folder / f"engine-{name}.gguf"
        if not path.exists():
            if "-" in name:
                architecture, ftype = name.split("-")
                getattr(tiny_models, f"write_{architecture}")(path, ftype=ftype)
            else:
                requantise(tiny_wide, path, name)
        return path

    return file


@pytest.fixture(scope="session")
def drafter_for(tiny_wide: Path, tiny_folder: Path) -> Callable[[Path], Path]:
    """A copy with a little noise: right often enough, wrong often enough."""

    def drafter(target: Path) -> Path:
        path = tiny_folder / f"drafter-of-{target.name}"
        if path.exists():
            return path
        # gguf cannot write K-quants: wide models get a drafter in F32.
        source = target if target.stem.count("-") == 2 else tiny_wide
        return tiny_models.perturb(source, path, noise=0.03)

    return drafter


def settings(target: Path, *draft: str | Path, slots: int = 1, **options: Any) -> EngineSettings:
    context: dict[str, Any] = {
        "context_size": 512,
        "n_sequences": slots,
        "n_batch": 128,
        "threads": 1,
    }
    context |= options.pop("context", {})
    return EngineSettings(
        target,
        tuple(str(name) for name in draft),
        window=options.pop("window", 8),
        context=ContextSettings(**context),
        **options,
    )


class Waiting:
    """A client that keeps what it gets."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.ended = threading.Event()

    def take(self, seq: Answering, pieces: Sequence[Piece]) -> None:
        self.pieces.extend(pieces)
        if seq.retired:
            self.ended.set()


def run(engine: Engine, *requests: Request) -> list[Answering]:
    """Ask all at once, wait for all."""
    clients = [Waiting() for _ in requests]
    sequences = [engine.submit(r, c.take) for r, c in zip(requests, clients, strict=True)]
    assert all(client.ended.wait(SOON) for client in clients)
    for seq in sequences:
        if seq.error is not None:
            raise seq.error
    return sequences


def texts(engine: Engine, requests: Sequence[Request]) -> list[list[int]]:
    return [seq.tokens for request in requests for seq in run(engine, request)]


def plain(target: Path, requests: Sequence[Request], **options: Any) -> list[list[int]]:
    with Engine(settings(target, **options)) as engine:
        return texts(engine, requests)


def test_wide_passes_change_neither_what_is_kept_under_a_key_nor_drafters_nor_exact_text(
    files: Callable[[str], Path],
    drafter_for: Callable[[Path], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether there is room for them differs from start to start."""
    target = files("q8_0")
    given = settings(target, drafter_for(target), mode="exact", prompt_chunk=32, slots=2)
    prompts = [Request(tuple(range(1, 251)), max_tokens=8), Request((5, 6, 7), max_tokens=8)]
    found = []
    for n_rows in (128, 256):
        monkeypatch.setattr("parlay.engine.engine.choose_rows", lambda *_, n=n_rows: n)
        with Engine(given) as engine:
            assert engine.cutting.n_most == engine.target.settings.rows_at_once == n_rows
            drafter = engine.drafts.proposers["model"]
            assert isinstance(drafter, DraftModel) and isinstance(drafter.passes, Context)
            assert drafter.passes.settings.n_batch == 128
            answers = run(engine, *prompts)
            assert all(answer.exact for answer in answers)
            found.append((engine.firm_key, [answer.tokens for answer in answers]))
    assert found[0] == found[1]


def watch(engine: Engine) -> list[tuple[int, ...]]:
    """The shapes of all coming passes over the target, prompts left out."""
    shapes: list[tuple[int, ...]] = []
    real = engine.target.start

    def start(spans: Sequence[Span]) -> None:
        if all(span.n_logits == len(span.tokens) for span in spans):
            shapes.append(tuple(len(span.tokens) for span in spans))
        real(spans)

    engine.target.start = start  # type: ignore[method-assign]
    return shapes


REQUESTS = [Request(prompt, max_tokens=40) for prompt in PROMPTS]

# -- exactness ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ftype", ["q8_0", "q4_k_m", "q6_k", "f16"])
@pytest.mark.parametrize("width", ["1", "2", "4", "8", "16"])
def test_in_every_class_the_text_is_the_same_with_drafts_and_without(
    ftype: str, width: str, files: Callable[[str], Path], drafter_for: Callable[..., Path]
) -> None:
    """Its own kernels decide whether a machine has all widths in one class, or each alone."""
    target = files(ftype)
    pinned: dict[str, Any] = {"mode": "exact", "exact_class": width}
    try:
        made = Engine(settings(target, drafter_for(target), window=16, **pinned))
    except BadRequest as error:
        assert "no exact class" in str(error)
        pytest.skip("passes of this width do not agree here")
    with made as engine:
        shapes = watch(engine)
        sequences = [seq for request in REQUESTS for seq in run(engine, request)]
        found = engine.exact
    assert {shape[0] for shape in shapes} <= {*found.rows_for(1)}
    assert all(seq.exact for seq in sequences)
    assert [seq.tokens for seq in sequences] == plain(target, REQUESTS, **pinned)
    n_accepted = sum(seq.counts.n_accepted for seq in sequences)
    assert n_accepted > 0 if found.limit > 1 else n_accepted == 0


@pytest.mark.parametrize(("ftype", "slots"), [("q8_0", 4), ("q6_k", 3), ("q4_k_m", 2)])
def test_concurrent_answers_stay_in_the_class_and_say_what_each_says_alone(
    ftype: str, slots: int, files: Callable[[str], Path], drafter_for: Callable[..., Path]
) -> None:
    target = files(ftype)
    with Engine(settings(target, drafter_for(target), mode="exact", slots=slots)) as engine:
        shapes = watch(engine)
        sequences = run(engine, *REQUESTS)
    found = engine.exact  # whether they share passes or take turns is decided by measured time
    assert all(found.holds(shape, [20] * len(shape)) for shape in shapes)
    assert all(seq.exact for seq in sequences)
    alone = plain(target, REQUESTS, mode="exact", exact_class=engine.exact_name)
    assert [seq.tokens for seq in sequences] == alone


def test_exact_is_the_default_where_it_costs_little(
    files: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine(settings(files("q8_0"), "suffix")) as engine:
        assert engine.mode == "exact"
        assert engine.chosen.cost == pytest.approx(0.0)  # every width is in its class
    monkeypatch.setattr(ExactChoice, "_cost", lambda *_: 0.04)
    monkeypatch.setattr(PROBE, lambda *_: None)  # as where not all shapes agree
    for pct, mode in ((5.0, "exact"), (3.0, "faithful")):
        with Engine(settings(files("f16"), "suffix", exact_cost_pct=pct)) as engine:
            assert engine.mode == mode


def test_faithful_mode_goes_beyond_the_set_and_says_so(
    files: Callable[[str], Path], drafter_for: Callable[..., Path]
) -> None:
    target = files("f16")
    with Engine(settings(target, drafter_for(target), mode="faithful")) as engine:
        shapes = watch(engine)
        sequences = run(engine, REQUESTS[0])
    assert max(shape[0] for shape in shapes) == 9
    assert not sequences[0].exact
    assert sequences[0].counts.n_accepted > 0


def test_the_probe_is_done_once_and_remembered(
    files: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    probed: list[int] = []

    def spy(*arguments: Any, **options: Any) -> Any:
        probed.append(1)
        return probe_whole(*arguments, **options)

    monkeypatch.setattr(PROBE, spy)
    found = []
    for _ in range(2):
        with Engine(settings(files("q4_k_m"), "suffix")) as engine:
            found.append(engine.exact)
    assert found[0] == found[1]
    assert len(probed) == 1
    # Whatever may change the set is part of what it is remembered by.
    for other in ({"window": 20}, {"context": {"cache_type_k": "f16"}}, {"slots": 2}):
        with Engine(settings(files("q4_k_m"), "suffix", **other)):
            pass
    with Engine(settings(files("q6_k"), "suffix")):
        pass
    assert len(probed) == 5


def test_an_unfinished_probe_is_not_remembered(
    files: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hasty(walker: Walker, *given: int) -> Any:
        return probe_whole(Walker(walker.passes, walker.chunk, Budget(-1.0)), *given)

    monkeypatch.setattr(PROBE, hasty)
    with Engine(settings(files("q8_0"), "suffix")) as engine:
        assert engine.exact.limit == 1
    monkeypatch.setattr(PROBE, probe_whole)
    with Engine(settings(files("q8_0"), "suffix")) as engine:
        assert engine.exact.limit >= 17


def test_the_smallest_batch_is_enough_for_the_probe(files: Callable[[str], Path]) -> None:
    small = settings(files("q8_0"), "suffix", context={"n_batch": 17})
    with Engine(small) as engine:
        assert engine.exact.limit >= 17
        assert texts(engine, REQUESTS[:1]) == plain(
            files("q8_0"), REQUESTS[:1], context={"n_batch": 17}
        )


# -- every kind of cache -----------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("name", ["mamba-q8_0", "lfm2-q8_0", "gemma3-q8_0"])
def test_every_way_to_roll_back_gives_plain_decodings_text(
    name: str, slots: int, files: Callable[[str], Path], drafter_for: Callable[..., Path]
) -> None:
    target = files(name)
    expected = plain(target, REQUESTS[:3])
    made = settings(target, drafter_for(target), mode="exact", slots=slots, window=4)
    with Engine(made) as engine:
        kinds = {"mamba": Rollback.CHECKPOINT, "lfm2": Rollback.BOUNDED}
        assert engine.target.rollback is kinds.get(name.split("-", maxsplit=1)[0], Rollback.PARTIAL)
        sequences = run(engine, *REQUESTS[:3])
        assert [seq.tokens for seq in sequences] == expected
        assert all(seq.exact for seq in sequences)
        counts = [seq.counts for seq in sequences]
        assert 0 < sum(c.n_accepted for c in counts) < sum(c.n_drafted for c in counts)


def test_sampled_text_is_the_same_with_and_without_a_drafter(
    files: Callable[[str], Path], drafter_for: Callable[..., Path]
) -> None:
    target = files("q8_0")
    requests = [
        Request(PROMPTS[0], 40, Sampling(temperature=0.8, seed=3)),
        Request(PROMPTS[1], 40, Sampling(temperature=1.0, top_k=40, top_p=0.9, seed=4)),
        Request(PROMPTS[2], 40, Sampling(temperature=1.0, min_p=0.05, repeat_penalty=1.2, seed=5)),
    ]
    expected = plain(target, requests)
    with Engine(settings(target, drafter_for(target), mode="exact")) as engine:
        assert texts(engine, requests) == expected
        again = texts(engine, requests)  # with the prompts' caches warm
    assert again == expected


@pytest.mark.parametrize("name", ["llama-q8_0", "mamba-q8_0"])
@pytest.mark.parametrize("cache_type", ["auto", "f16"])
def test_a_full_context_slides_on_every_cache_with_and_without_drafts(
    name: str, cache_type: str, files: Callable[[str], Path], drafter_for: Callable[..., Path]
) -> None:
    target = files(name)
    context = {"context_size": 256, "cache_type_k": cache_type}
    request = Request(PROMPTS[0], max_tokens=420, context_full="slide")
    made = settings(target, drafter_for(target), mode="exact", context=context, window=4)
    with Engine(made) as engine:
        (seq,) = run(engine, request)
        assert engine.target.context_size == 256
    assert seq.n_generated == 420
    assert seq.counts.n_accepted > 0
    with Engine(settings(target, context=context)) as engine:
        (alone,) = run(engine, request)
    assert seq.tokens == alone.tokens


def test_a_full_context_stops_with_length(files: Callable[[str], Path]) -> None:
    made = settings(files("llama-q8_0"), "suffix", context={"context_size": 256})
    with Engine(made) as engine:
        (seq,) = run(engine, Request(PROMPTS[0], max_tokens=1000))
    assert seq.finish_reason == "length"
    assert len(seq.tokens) == 257


def test_the_next_turn_reuses_the_cache_and_says_the_same(
    files: Callable[[str], Path], drafter_for: Callable[..., Path]
) -> None:
    target = files("llama-q8_0")
    with Engine(settings(target, drafter_for(target), mode="exact")) as engine:
        (first,) = run(engine, REQUESTS[0])
        turn = Request((*first.tokens, 50, 51, 52), max_tokens=20)
        (second,) = run(engine, turn)
    assert second.n_reused == len(first.tokens) - 1
    with Engine(settings(target)) as engine:
        run(engine, REQUESTS[0])
        (alone,) = run(engine, turn)
    assert second.tokens == alone.tokens


def test_an_answer_given_before_is_drafted_where_it_is_remembered(
    files: Callable[[str], Path],
) -> None:
    target, found = files("llama-q8_0"), {}
    for n in (0, 1000):
        with Engine(settings(target, "suffix", mode="exact", remember_tokens=n)) as engine:
            first, again = (run(engine, REQUESTS[0])[0] for _ in range(2))
        assert first.tokens == again.tokens
        found[n] = again.counts.n_accepted - first.counts.n_accepted
    assert found[0] == 0
    assert found[1000] > 15


# -- what is refused ---------------------------------------------------------------------------


def refused(made: EngineSettings, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said) as caught:
        Engine(made)
    assert "\n" not in str(caught.value)


def test_a_drafter_with_another_vocabulary_is_refused_with_the_first_difference(
    tiny_llama: Path, tiny_other_vocab: Path
) -> None:
    refused(
        settings(tiny_llama, tiny_other_vocab),
        VocabularyMismatch,
        r"other-vocab\.gguf cannot draft for llama\.gguf: token 268 is",
    )


def test_a_memory_of_less_than_nothing_is_refused(tiny_llama: Path) -> None:
    with pytest.raises(BadRequest, match="give 0 or more"):
        settings(tiny_llama, "suffix", remember_tokens=-1)


def test_a_memory_that_nobody_would_use_is_refused(tiny_llama: Path) -> None:
    with pytest.raises(BadRequest, match="add suffix"):
        settings(tiny_llama, remember_tokens=100)


def test_a_window_that_no_pass_holds_is_refused(tiny_llama: Path) -> None:
    with pytest.raises(BadRequest, match=r"window of 200 .* needs passes of 201 rows"):
        settings(tiny_llama, window=200)
    with pytest.raises(BadRequest, match="the window is -1"):
        settings(tiny_llama, window=-1)


def test_a_model_that_cannot_forget_is_refused_for_speculation_only(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Context, "_probe_rollback", lambda self: Rollback.NONE)
    refused(settings(tiny_llama, "suffix"), RollbackUnsupported, "use --draft none")
    with Engine(settings(tiny_llama)) as engine:
        assert run(engine, REQUESTS[0])[0].n_generated == 40


def test_a_request_that_cannot_be_met_is_refused_before_it_starts(tiny_llama: Path) -> None:
    with Engine(settings(tiny_llama, "suffix")) as engine:

        def ask(*arguments: Any, **options: Any) -> None:
            engine.submit(Request(*arguments, **options), lambda *_: None)

        with pytest.raises(PromptTooLong, match="has 512 tokens, the context holds 512"):
            ask((5,) * 512)
        with pytest.raises(BadRequest, match="no proposer 'lookup' is loaded; loaded: prediction"):
            ask((5,), proposers=("lookup",))
        with pytest.raises(BadRequest, match=r"logit_bias names token 271.*0 to 270"):
            ask((5,), sampling=Sampling(logit_bias={271: 1.0}))
        with pytest.raises(BadRequest, match=r"token 999 is not in the vocabulary"):
            ask((5, 999))
        assert run(engine, REQUESTS[0])[0].n_generated == 40  # and the engine still works


# -- nothing left behind -----------------------------------------------------------------------


def handles(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Counts contexts and models made and freed, over llama.cpp's own calls."""
    alive = {"contexts": 0, "models": 0}

    def count(name: str, kind: str, change: int) -> None:
        real = getattr(C, name)

        def spy(*arguments: Any) -> Any:
            result = real(*arguments)
            if change < 0 or result:
                alive[kind] += change
            return result

        monkeypatch.setattr(C, name, spy)

    count("llama_init_from_model", "contexts", 1)
    count("llama_free", "contexts", -1)
    count("llama_model_load_from_file", "models", 1)
    count("llama_model_free", "models", -1)
    return alive


def test_closing_frees_every_model_and_context(
    tiny_llama: Path, tiny_drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive = handles(monkeypatch)
    engine = Engine(settings(tiny_llama, tiny_drafter, "suffix"))
    assert alive == {"contexts": 2, "models": 2}
    engine.close()
    engine.close()
    assert alive == {"contexts": 0, "models": 0}


def test_an_engine_that_could_not_open_frees_what_it_had_opened(
    tiny_llama: Path, tiny_other_vocab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive = handles(monkeypatch)
    threads = set(threading.enumerate())
    for made in (
        settings(tiny_llama, tiny_other_vocab),
        settings(tiny_llama, tmp_path / "missing.gguf"),
        settings(tiny_llama, tiny_llama, drafter_cache_type_k="q8_0"),
    ):
        with pytest.raises(ParlayError):
            Engine(made)
        assert alive == {"contexts": 0, "models": 0}
    assert set(threading.enumerate()) <= threads


def test_after_any_end_of_an_answer_its_slot_is_free_and_the_cache_is_what_the_slot_says(
    files: Callable[[str], Path], drafter_for: Callable[..., Path]
) -> None:
    target = files("llama-q8_0")
    with Engine(settings(target, drafter_for(target), mode="exact", slots=2)) as engine:
        clients = [Waiting() for _ in range(6)]
        cancelled = threading.Event()

        def held(seq: Answering, pieces: Sequence[Piece]) -> None:
            cancelled.wait(SOON)  # or it could have ended before
            clients[1].take(seq, pieces)

        takes = [held if client is clients[1] else client.take for client in clients]
        sequences = [
            engine.submit(Request((*PROMPTS[i % 4], 5 + i), max_tokens=200), take)
            for i, take in enumerate(takes)
        ]
        sequences[1].cancelled = True
        sequences[4].cancelled = True
        cancelled.set()
        assert all(client.ended.wait(SOON) for client in clients)
        assert engine.slots.n_free == 2
        assert engine.active == ()
        assert engine.n_waiting == 0
        for slot in engine.slots.all:
            assert engine.target.length(slot.seq_id) == len(slot.tokens)
    assert [seq.finish_reason for seq in sequences].count("cancelled") == 2


def test_leaving_the_block_ends_unfinished_answers(tiny_llama: Path) -> None:
    client = Waiting()
    with Engine(settings(tiny_llama, "suffix")) as engine:
        seq = engine.submit(Request(PROMPTS[0], max_tokens=400, context_full="slide"), client.take)
    assert client.ended.wait(SOON)
    assert seq.finish_reason in ("error", "length")


# -- the stream --------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [False, True])
def test_a_stream_waits_for_the_last_pieces_even_if_done_is_said_before_they_come(
    whole: bool,
) -> None:
    """The worker marks a sequence done a moment before it sends what it said last."""
    seq = Answering(Request((1,)), _Nothing(), frozenset(), lambda *_: None)
    told = Accepted(n_prompt=(1,), seed=0, temperature=0.0, mode="exact", policy="default")
    stream = Stream(told, RawText, whole)
    stream.sequence = seq
    last = Piece(5, "the end", Origin.PLAIN, "none")

    def finish() -> None:
        seq.finish("length")
        said_done.set()
        may_send.wait(SOON)
        stream._take(seq, [last])
        seq.retired = True
        stream._take(seq, [])

    said_done, may_send = threading.Event(), threading.Event()
    worker = threading.Thread(target=finish)
    worker.start()
    assert said_done.wait(SOON)
    threading.Timer(0.05, may_send.set).start()
    assert [piece.text for piece in stream] == ["the end"]
    assert stream.answer.text == "the end"
    worker.join(SOON)


class _Nothing:
    def push(self, token: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


def test_counts_agree_with_the_answer_even_if_a_stop_string_cuts_a_draft(
    files: Callable[[str], Path],
) -> None:
    """Tokens that were verified but never said are no part of the answer's figures."""
    target = files("llama-q8_0")
    with Engine(settings(target, target, mode="exact")) as engine:
        vocabulary = engine.model.vocabulary
        (whole,) = run(engine, REQUESTS[0])
        said = whole.tokens[len(PROMPTS[0]) :]
        for at in range(4, 30, 3):
            stop = vocabulary.detokenize(said[at : at + 2])
            if "\ufffd" in stop or not stop:
                continue
            (seq,) = run(engine, Request(PROMPTS[0], max_tokens=40, stop=(stop,)))
            assert seq.finish_reason == "stop"
            assert seq.counts.n_generated == seq.n_generated
            assert seq.counts.n_accepted <= seq.n_generated


def test_a_drafter_that_drafts_through_text_has_a_price(
    tiny_llama: Path, tiny_other_vocab: Path
) -> None:
    """Without one the controller would never ask it."""
    settings = EngineSettings(
        tiny_llama,
        (str(tiny_other_vocab),),
        translate=True,
        context=ContextSettings(context_size=256, threads=1),
    )
    with Engine(settings) as engine:
        assert engine.prices is not None and engine.prices.drafter is not None


def test_closing_waits_for_a_drafter_that_is_being_loaded(
    tiny_llama: Path, tiny_drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its vocabulary is compared with the target's, whose memory must still be there."""
    inside, go, found = threading.Event(), threading.Event(), []
    compare = Vocabulary.first_difference

    def slowly(self: Vocabulary, other: Vocabulary) -> str | None:
        inside.set()
        assert go.wait(SOON)
        found.append(compare(self, other))
        return None

    def load() -> None:
        with pytest.raises(Closed):
            engine.load_drafters([tiny_drafter])
        found.append("refused")

    monkeypatch.setattr(Vocabulary, "first_difference", slowly)
    engine = Engine(settings(tiny_llama, "suffix", tiny_drafter, drafter_later=True))
    loading, closing = threading.Thread(target=load), threading.Thread(target=engine.close)
    loading.start()
    assert inside.wait(SOON)
    closing.start()
    engine._running._thread.join(SOON)
    closing.join(0.2)
    assert closing.is_alive()
    go.set()
    loading.join(SOON)
    closing.join(SOON)
    assert found == [None, "refused"]


def test_a_closed_engine_loads_no_drafter(tiny_llama: Path, tiny_drafter: Path) -> None:
    engine = Engine(settings(tiny_llama, "suffix", tiny_drafter, drafter_later=True))
    engine.close()
    with pytest.raises(Closed):
        engine.load_drafters([tiny_drafter])


# -- many slots --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["exact", "faithful"])
@pytest.mark.parametrize("ftype", ["q8_0", "q4_k_m"])
def test_an_engine_of_many_slots_starts_and_answers_in_all_of_them(
    ftype: str, mode: str, files: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    """More rows than any pass has, if each of them drafted as much as one may."""
    n, target = 40, files(ftype)
    rng = np.random.default_rng(40)
    prompts = [tuple(int(t) for t in rng.integers(3, 250, 10)) * 2 for _ in range(n)]
    windows = [None, 16, 16, 0]
    requests = [
        Request(prompt, max_tokens=6, window=windows[i % 4]) for i, prompt in enumerate(prompts)
    ]
    context = {"context_size": 128, "n_batch": 1024}
    made = settings(target, "suffix", slots=n, mode=mode, window=16, context=context)
    with Engine(made) as engine:
        answers = run(engine, *requests)
        assert all(len(seq.tokens) == 26 for seq in answers)
        if mode == "exact":
            alone = texts(engine, requests[:2])
            assert [seq.tokens for seq in answers[:2]] == alone
    assert "failed" not in caplog.text


# -- an engine that nobody waits for --------------------------------------------------------------


def test_an_engine_that_is_interrupted_while_it_measures_is_freed_once_it_has_stopped(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C freed its contexts under the passes that were being timed."""
    measuring, stopped = threading.Event(), list[bool]()
    free = Engine._free

    def interrupted(worker: Worker) -> None:
        assert measuring.wait(SOON)
        raise KeyboardInterrupt

    def watched(engine: Engine) -> None:
        assert engine._worker is not None
        stopped.append(not engine._worker._thread.is_alive())
        free(engine)

    monkeypatch.setattr(Worker, "wait_until_open", interrupted)
    monkeypatch.setattr(Engine, "_free", watched)
    with pytest.raises(KeyboardInterrupt):
        Engine(settings(tiny_llama, "suffix"), progress=lambda *_: measuring.set())
    assert stopped == [True]


def test_a_model_that_nobody_waits_for_is_not_read_to_its_end(tiny_llama: Path) -> None:
    with pytest.raises(LoadError):
        Model(tiny_llama, ModelSettings(), lambda: False)
