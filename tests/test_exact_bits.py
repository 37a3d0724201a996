"""Real text on real weights, to the bit: cold, warm, with drafts, alone and as one of four.

The default model with K-quants, at F16 and as it is shipped; the reference has no proposer and a
cold cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from parlay.bench.suite import load_suite
from parlay.engine.engine import Engine
from parlay.engine.exact import choice
from parlay.engine.request import Request
from parlay.llama.vocabulary import Vocabulary
from tests.engine.test_earned import Bits, bits, scored
from tests.engine.test_engine import SOON, Waiting, settings

pytestmark = pytest.mark.weights

LENGTHS = (40, 300, 41, 1500)
N_TOKENS = WINDOW = 8


@pytest.fixture(scope="module", params=["q4_k_m", "f16", "q4_1"])
def made(
    request: pytest.FixtureRequest,
    smollm2: Path,
    smollm2_as: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., Engine]]:
    """Engines of one file type; what the first one probes the others recall."""
    target = smollm2 if request.param == "q4_1" else smollm2_as(request.param)
    options: dict[str, Any] = {"mode": "exact", "context": {"context_size": 2048, "threads": 0}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARLAY_CACHE", str(tmp_path_factory.mktemp("bits")))
        # No wider than the drafts here are.
        patch.setattr(choice, "_MIN_WIDTHS", WINDOW + 1)

        def engine(*draft: str, **more: Any) -> Engine:
            return Engine(settings(target, *draft, slots=4, window=WINDOW, **options, **more))

        yield engine


def texts(vocabulary: Vocabulary) -> list[Request]:
    """Beginnings of different texts, so long; one is a chat's, which may have other kernels."""
    prompts = [str(p.messages[-1]["content"]) for p in load_suite("core-60").prompts]
    heads = ("", "<|im_start|>system\n", "", "")
    long = [head + " ".join(prompts[i:] + prompts[:i]) for i, head in enumerate(heads)]
    whole = [vocabulary.tokenize(text) for text in long]
    cut = [text[:n] for text, n in zip(whole, LENGTHS, strict=True)]
    assert list(map(len, cut)) == list(LENGTHS)
    return [Request(tuple(text), max_tokens=N_TOKENS, logprobs=2) for text in cut]


def together(engine: Engine, requests: list[Request]) -> list[Bits]:
    clients = [Waiting() for _ in requests]
    answers = [engine.submit(r, c.take) for r, c in zip(requests, clients, strict=True)]
    assert all(client.ended.wait(SOON) for client in clients)
    assert all(answer.exact for answer in answers)
    return [scored(client) for client in clients]


def test_bits_depend_on_nothing_but_the_prompt(made: Callable[..., Engine]) -> None:
    with made("suffix") as engine:
        requests, name = texts(engine.model.vocabulary), engine.exact_name
        four = together(engine, requests)
        warm = [bits(engine, request) for request in requests]
        assert (
            engine.exact.shared or not engine.exact.whole
        )  # where they may share passes, they did
    with made(exact_class=name) as engine:
        cold = [bits(engine, request) for request in requests]
    assert four == cold
    assert warm == cold
