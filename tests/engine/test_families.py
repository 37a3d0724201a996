"""Every family of models people run, tiny and random: drafts never change a greedy text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parlay.decoding.sampling import Sampling
from parlay.engine.engine import Engine
from parlay.engine.request import Request
from parlay.llama.capture import GIVES_LAYERS
from parlay.llama.facts import read_facts
from parlay.llama.undo import Rollback
from tests import tiny_drafters, tiny_models
from tests.engine.test_engine import run, settings
from tests.scripted import RecordedProposer

WINDOWS = (1, 3, 7)
GREEDY = Sampling(temperature=0.0)
# Beginnings that repeat: there is something to draft from, and it is mostly wrong.
PHRASE = tuple(int(t) for t in np.random.default_rng(3).integers(3, 250, 9))
PROMPTS = (PHRASE * 3, (*PHRASE[2:], *PHRASE, 77, *PHRASE[:5]))
KINDS = dict.fromkeys(tiny_models.RECURRENT, Rollback.BOUNDED) | {"mamba": Rollback.CHECKPOINT}


@pytest.fixture(scope="module", params=tiny_models.WRITERS)
def family(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Path]]:
    """A name and its file; what earlier runs probed is not believed."""
    folder = tmp_path_factory.mktemp(request.param)
    path = tiny_models.WRITERS[request.param](folder / "model.gguf", ftype="q8_0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARLAY_CACHE", str(folder / "cache"))
        yield request.param, path


def test_drafts_of_any_kind_and_window_leave_the_text_of_plain_decoding(
    family: tuple[str, Path],
) -> None:
    name, path = family
    with Engine(settings(path)) as engine:
        expected = [run(engine, Request(p, 32, GREEDY))[0].tokens for p in PROMPTS]
    drafters = _drafters(name, path)
    # In the class of plain passes, whatever prices would choose here.
    pinned: dict[str, Any] = {"mode": "exact", "exact_class": "1"}
    made = settings(path, "suffix", *drafters, remember_tokens=4096, **pinned)
    n_drafted = n_accepted = 0
    with Engine(made) as engine:
        assert engine.target.rollback is KINDS.get(name, Rollback.PARTIAL)
        n_vocab = engine.target.n_vocab
        engine.drafts.proposers["recorded"] = RecordedProposer(expected, 0.7, n_vocab=n_vocab)
        models = [proposer for proposer in engine.drafts.proposers if proposer.startswith("model")]
        assert len(models) == len(drafters)
        for proposer in ("suffix", "recorded", *models):
            for window in WINDOWS:
                asked = [
                    Request(p, 32, GREEDY, proposers=(proposer,), window=window) for p in PROMPTS
                ]
                answers = [run(engine, request)[0] for request in asked]
                assert [seq.tokens for seq in answers] == expected, (proposer, window)
                n_drafted += sum(seq.counts.n_drafted for seq in answers)
                n_accepted += sum(seq.counts.n_accepted for seq in answers)
        exact = engine.exact.limit > 1
    if exact:
        assert 0.2 * n_drafted < n_accepted < 0.95 * n_drafted


def _drafters(name: str, path: Path) -> list[Path]:
    """A model of the same family that is often wrong; a block drafter where states are given."""
    whole = tiny_models.WRITERS[name](path.with_name("whole.gguf"))
    made = [tiny_models.perturb(whole, path.with_name("drafter.gguf"), noise=0.1)]
    if read_facts(path).architecture in GIVES_LAYERS:
        made.append(tiny_drafters.write_dflash(path.with_name("block.gguf")))
    return made
