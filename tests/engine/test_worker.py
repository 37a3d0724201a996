"""One thread owns the models; whoever talks to it always hears the end of the story."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
from numpy.typing import NDArray

from parlay.decoding.draft import Draft
from parlay.decoding.span import Span
from parlay.engine import worker as worker_module
from parlay.engine.request import Request
from parlay.engine.sequence import Piece
from parlay.engine.sequence import Sequence as Answering
from parlay.engine.worker import Worker
from parlay.errors import Closed, ParlayError
from parlay.proposers.proposer import Ask, Worth
from tests.engine.rig import LOGITS, Letters, Rig, plain
from tests.scripted import ScriptedProposer
from tests.serving import PATIENCE_S

PROMPT = (1, 2, 3)
SOON = PATIENCE_S


class Client:
    """Waits for its answer as an HTTP handler would."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.threads: set[str] = set()
        self.ended = threading.Event()
        self.started = threading.Event()
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def take(self, seq: Answering, pieces: Sequence[Piece]) -> None:
        self.threads.add(threading.current_thread().name)
        self.pieces.extend(pieces)
        self.started.set()
        self.may_go_on.wait(SOON)
        if seq.retired:
            self.ended.set()

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)


class Desk:
    """A worker and its clients."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.worker = Worker(lambda: rig.loop)
        self.worker.wait_until_open()

    def ask(self, request: Request, client: Client | None = None) -> tuple[Answering, Client]:
        client = client or Client()
        seq = Answering(request, Letters(), frozenset(), client.take)
        self.worker.submit(seq)
        return seq, client


@contextmanager
def desk(rig: Rig) -> Iterator[Desk]:
    opened = Desk(rig)
    try:
        yield opened
    finally:
        opened.worker.close()


def test_answers_to_several_threads_are_plain_decodings() -> None:
    with desk(Rig(slots=2)) as d:
        results: dict[int, str] = {}

        def talk(i: int) -> None:
            _, client = d.ask(Request((*PROMPT, i), max_tokens=12 + i))
            assert client.ended.wait(SOON)
            results[i] = client.text
            assert client.threads == {"parlay-worker"}

        threads = [threading.Thread(target=talk, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON)
    assert results == {i: plain(Request((*PROMPT, i), max_tokens=12 + i)) for i in range(6)}
    assert d.rig.loop.idle


def test_cancelling_from_another_thread_ends_the_answer_within_a_round_and_frees_its_slot() -> None:
    with desk(Rig(window=2)) as d:
        client = Client()
        client.may_go_on.clear()  # the worker waits inside the first round
        seq, _ = d.ask(Request(PROMPT, max_tokens=100), client)
        assert client.started.wait(SOON)
        seq.cancelled = True
        before = len(client.pieces)
        client.may_go_on.set()
        assert client.ended.wait(SOON)
        assert seq.finish_reason == "cancelled"
        assert len(client.pieces) - before <= 1  # at most the text that was held back
        _, after = d.ask(Request(PROMPT, max_tokens=5))  # the only slot is free again
        assert after.ended.wait(SOON)
        assert after.text == plain(Request(PROMPT, max_tokens=5))


def test_a_waiting_answer_can_be_cancelled_too() -> None:
    with desk(Rig(slots=1)) as d:
        first, second = Client(), Client()
        first.may_go_on.clear()
        d.ask(Request(PROMPT, max_tokens=20), first)
        assert first.started.wait(SOON)
        seq, _ = d.ask(Request(PROMPT, max_tokens=20), second)
        seq.cancelled = True
        first.may_go_on.set()
        assert second.ended.wait(SOON)
        assert seq.finish_reason == "cancelled"
        assert seq.seq_id == -1  # it never had a slot
        assert first.ended.wait(SOON)


def test_closing_ends_every_unfinished_answer_with_an_error() -> None:
    d = Desk(Rig(slots=1))
    clients = [Client() for _ in range(4)]
    clients[0].may_go_on.clear()
    sequences = [d.ask(Request(PROMPT, max_tokens=1000), client)[0] for client in clients]
    assert clients[0].started.wait(SOON)
    closing = threading.Thread(target=d.worker.close)
    closing.start()
    assert d.worker._closed.wait(SOON)  # or the first answer could end by itself before
    clients[0].may_go_on.set()
    closing.join(SOON)
    for seq, client in zip(sequences, clients, strict=True):
        assert client.ended.wait(SOON)
        assert seq.finish_reason == "error"
        assert isinstance(seq.error, Closed)
    assert d.rig.loop.idle
    assert not d.worker._thread.is_alive()


@pytest.mark.parametrize("busy_in", ["a call", "a round"])
def test_what_was_handed_over_just_before_closing_ends_too(busy_in: str) -> None:
    """The worker is busy when both the answer and the order to close come in."""
    d = Desk(Rig(slots=2))
    talking = Client()
    talking.may_go_on.clear()
    if busy_in == "a round":
        d.ask(Request(PROMPT, max_tokens=5), talking)
    else:
        seq = Answering(Request(PROMPT), Letters(), frozenset(), lambda *_: None)
        d.worker.call(lambda: talking.take(seq, ()))
    assert talking.started.wait(SOON)
    seq, client = d.ask(Request(PROMPT, max_tokens=5))
    closing = threading.Thread(target=d.worker.close)
    closing.start()
    assert d.worker._closed.wait(SOON)
    talking.may_go_on.set()
    closing.join(SOON)
    assert client.ended.wait(SOON), "nobody told this client that the engine closed"
    assert isinstance(seq.error, Closed)


def test_submitting_and_closing_at_the_same_time_loses_no_answer() -> None:
    for _ in range(30):
        d = Desk(Rig())
        refused: list[Client] = []
        taken: list[Client] = []

        def talk(d: Desk = d, refused: list[Client] = refused, taken: list[Client] = taken) -> None:
            for _ in range(20):
                client = Client()
                try:
                    d.ask(Request(PROMPT, max_tokens=3), client)
                    taken.append(client)
                except Closed:
                    refused.append(client)

        thread = threading.Thread(target=talk)
        thread.start()
        d.worker.close()
        thread.join(SOON)
        assert len(taken) + len(refused) == 20
        assert all(client.ended.wait(SOON) for client in taken)
        assert not any(client.pieces for client in refused)


def test_a_closed_worker_refuses_with_what_to_do_and_can_be_closed_again() -> None:
    d = Desk(Rig())
    d.worker.close()
    d.worker.close()
    with pytest.raises(Closed, match="open a new one"):
        d.ask(Request(PROMPT))
    with pytest.raises(Closed):
        d.worker.call(lambda: None)


def test_closing_from_inside_a_round_does_not_wait_for_itself() -> None:
    d = Desk(Rig())
    ended = threading.Event()

    def take(seq: Answering, pieces: Sequence[Piece]) -> None:
        d.worker.close()
        if seq.retired:
            ended.set()

    d.worker.submit(Answering(Request(PROMPT, max_tokens=50), Letters(), frozenset(), take))
    assert ended.wait(SOON)


# -- faults ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [RuntimeError("boom"), AssertionError(), IndexError("x")])
def test_a_fault_inside_a_round_ends_the_answers_with_an_error_and_the_next_ones_work(
    fault: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with desk(Rig(slots=2)) as d:
        real = d.rig.target.decode
        faults = iter([fault])

        def decode(spans: Sequence[Span]) -> list[NDArray[np.float32]]:
            for error in faults:
                raise error
            return real(spans)

        monkeypatch.setattr(d.rig.target, "decode", decode)
        seq, client = d.ask(Request(PROMPT, max_tokens=5))
        assert client.ended.wait(SOON)
        assert seq.finish_reason == "error"
        assert isinstance(seq.error, ParlayError)
        assert type(fault).__name__ in seq.error.message
        _, after = d.ask(Request(PROMPT, max_tokens=5))
        assert after.ended.wait(SOON)
        assert after.text == plain(Request(PROMPT, max_tokens=5))
    assert "a round failed" in caplog.text


def test_a_fault_in_the_middle_leaves_no_wrong_cache_for_the_next_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pass has written its rows when verification breaks."""
    with desk(Rig(window=4)) as d:
        real = d.rig.target.truncate
        faults = iter([RuntimeError("boom")])

        def truncate(seq_id: int, length: int) -> None:
            for error in faults:
                raise error
            real(seq_id, length)

        monkeypatch.setattr(d.rig.target, "truncate", truncate)
        d.rig.drafts.proposers["scripted"] = ScriptedProposer(LOGITS, [True, False] * 50)
        seq, client = d.ask(Request(PROMPT, max_tokens=20))
        assert client.ended.wait(SOON)
        assert seq.finish_reason == "error"
        turn = Request((*seq.tokens, 5), max_tokens=8)
        _, after = d.ask(turn)
        assert after.ended.wait(SOON)
        assert after.text == plain(turn)


def failing(name: str) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise ZeroDivisionError(name)

    return fail


@pytest.mark.parametrize("method", ["draft", "open", "finish"])
def test_a_proposer_that_breaks_costs_nobody_an_answer(
    method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    proposer = ScriptedProposer(LOGITS)
    monkeypatch.setattr(proposer, method, failing(method))
    requests = [Request((*PROMPT, i), max_tokens=5) for i in range(3)]
    with desk(Rig(proposers={"scripted": proposer}, slots=2)) as d:
        clients = [d.ask(request)[1] for request in requests]
        assert all(client.ended.wait(SOON) for client in clients)
    assert [client.text for client in clients] == [plain(request) for request in requests]
    assert d.rig.loop.idle
    assert "ZeroDivisionError" in caplog.text


def test_a_receiver_that_breaks_loses_its_own_answer_only(caplog: pytest.LogCaptureFixture) -> None:
    with desk(Rig(slots=2)) as d:
        gone = threading.Event()

        def broken(seq: Answering, pieces: Sequence[Piece]) -> None:
            if seq.retired:
                gone.set()
            raise ConnectionError("the client went away")

        seq = Answering(Request(PROMPT, max_tokens=500), Letters(), frozenset(), broken)
        d.worker.submit(seq)
        request = Request((*PROMPT, 4), max_tokens=30)
        _, client = d.ask(request)
        assert client.ended.wait(SOON)
        assert client.text == plain(request)
        assert gone.wait(SOON)
        assert seq.finish_reason == "cancelled"
    assert "the client went away" in caplog.text


def test_a_broken_call_between_rounds_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with desk(Rig()) as d:
        d.worker.call(failing("call"))
        _, client = d.ask(Request(PROMPT, max_tokens=5))
        assert client.ended.wait(SOON)
        assert client.text == plain(Request(PROMPT, max_tokens=5))
    assert "ZeroDivisionError: call" in caplog.text


def test_what_runs_on_the_workers_thread_gives_its_result_or_its_error_and_can_be_cancelled() -> (
    None
):
    with desk(Rig()) as at:
        assert (
            at.worker.call(lambda: threading.current_thread().name).result(SOON) == "parlay-worker"
        )
        with pytest.raises(ZeroDivisionError):
            at.worker.call(lambda: 1 // 0).result(SOON)
        may_go_on, made = threading.Event(), list[int]()
        at.worker.call(lambda: may_go_on.wait(SOON))
        late = at.worker.call(lambda: made.append(1))
        late.cancel()
        may_go_on.set()
        at.worker.call(lambda: None).result(SOON)
        assert made == []


def test_a_proposer_that_is_asked_sees_one_thread_only() -> None:
    names: set[str] = set()

    class Watching(ScriptedProposer):
        def draft(self, asks: Sequence[Ask], worth: Worth | None = None) -> list[Draft]:
            names.add(threading.current_thread().name)
            return super().draft(asks)

    with desk(Rig(proposers={"scripted": Watching(LOGITS)}, slots=2)) as d:
        clients = [d.ask(Request((*PROMPT, i), max_tokens=8))[1] for i in range(3)]
        assert all(client.ended.wait(SOON) for client in clients)
    assert names == {"parlay-worker"}


def test_a_quiet_moment_is_used_to_tidy_up_and_the_next_request_is_answered() -> None:
    rig, tidied = Rig(), threading.Event()
    rig.loop.tidy = lambda called: tidied.set()  # type: ignore[method-assign]
    with desk(rig) as opened:
        assert tidied.wait(SOON)
        _, client = opened.ask(Request(PROMPT, max_tokens=4))
        assert client.ended.wait(SOON)
    assert client.text == plain(Request(PROMPT, max_tokens=4))


def test_while_there_is_nothing_to_do_it_looks_around_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("_QUIET_S", "_REST_S"):
        monkeypatch.setattr(worker_module, name, 0.001)
    looked = threading.Semaphore(0)
    worker = Worker(lambda: Rig().loop, looked.release)
    try:
        worker.wait_until_open()
        assert all(looked.acquire(timeout=SOON) for _ in range(3))
    finally:
        worker.close()
