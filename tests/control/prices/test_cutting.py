"""How passes are cut and priced: beside measured cases and what llama.cpp really does."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from parlay.control.prices.cost import CostTable
from parlay.control.prices.curve import Curve
from parlay.control.prices.cutting import Cutting, PassPart, seconds

APART, UNIFIED = Cutting(), Cutting(unified=True)
SIXTEEN = dict.fromkeys(range(16), 1)


def test_equal_rows_of_neighbours_are_one_part() -> None:
    assert APART.parts(SIXTEEN) == [PassPart(16, 16)]
    assert APART.parts(dict.fromkeys(range(3, 7), 3)) == [PassPart(4, 12)]


def test_one_longer_draft_makes_two_passes_of_one() -> None:
    assert APART.parts({**SIXTEEN, 5: 3}) == [PassPart(16, 16), PassPart(1, 2)]


def test_longer_drafts_apart_from_each_other_have_a_pass_each() -> None:
    ragged = {s: 3 if s % 4 == 0 else 1 for s in range(16)}
    assert APART.parts(ragged) == [PassPart(16, 16), *[PassPart(1, 2)] * 4]


def test_a_gap_in_the_ids_parts_a_pass() -> None:
    assert APART.parts({s: 1 for s in range(16) if s != 7}) == [PassPart(7, 7), PassPart(8, 8)]
    assert APART.parts(dict.fromkeys(range(0, 16, 2), 1)) == [PassPart(1, 1)] * 8


def test_a_unified_cache_takes_any_rows_at_once() -> None:
    assert UNIFIED.parts({0: 1, 5: 3, 9: 2}) == [PassPart(3, 6)]


def test_a_unified_recurrent_model_has_equal_rows_but_no_gaps() -> None:
    assert Cutting(unified=True, recurrent=True).parts({0: 1, 5: 3}) == [
        PassPart(2, 2),
        PassPart(1, 2),
    ]


def test_a_part_holds_so_many_rows_at_most() -> None:
    assert Cutting(n_most=4).parts({0: 6, 1: 6}) == [PassPart(2, 4)] * 3
    assert Cutting(unified=True, n_most=4).parts({0: 6, 1: 1}) == [PassPart(1, 4), PassPart(2, 3)]


def test_last_rows_that_belong_together_stay_together() -> None:
    kept = Cutting(recurrent=True, n_tail=4)
    assert kept.parts({0: 1, 1: 3}) == [PassPart(1, 1), PassPart(1, 3)]
    assert kept.parts({0: 1, 1: 5}) == [PassPart(2, 2), PassPart(1, 4)]


def _table() -> CostTable:
    """The 8B stand-in on an H200, caches apart (ms)."""
    one = Curve({1: 3.33e-3, 2: 3.53e-3, 3: 4.1e-3}, {1: 3.97e-3, 2: 4.8e-3, 3: 5.4e-3})
    many = Curve({16: 8.56e-3, 48: 11.03e-3}, {16: 9.5e-3, 48: 12.0e-3})
    return CostTable({(256, 1): one, (256, 16): many})


def test_a_ragged_pass_costs_all_of_its_parts() -> None:
    costs, plain = _table(), PassPart(16, 16)
    ragged = APART.parts({**SIXTEEN, 5: 3})
    assert seconds([plain], costs, 256, plain) == pytest.approx(8.56e-3)
    assert seconds(ragged, costs, 256, ragged[-1]) == pytest.approx(14.3e-3)  # measured: 14.39
    apart = APART.parts({s: 3 if s % 4 == 0 else 1 for s in range(16)})
    assert seconds(apart, costs, 256, apart[-1]) == pytest.approx(27.5e-3, rel=0.12)  # 27.52


_FIELD = re.compile(r"ubatch_print:\s+(n_tokens|n_seqs_unq)\s+= (\d+)")


@pytest.mark.parametrize("unified", [False, True])
@pytest.mark.parametrize("kind", ["llama", "lfm2"])
def test_the_library_cuts_as_told(
    kind: str,
    unified: bool,
    cut_by_llama: Callable[[str, bool, Mapping[int, int]], list[PassPart]],
) -> None:
    """A recurrent model's parts have equal rows whatever the cache; llama.cpp prints its cuts."""
    cutting = Cutting(unified=unified, recurrent=kind == "lfm2", n_most=32)
    rng = random.Random(7)
    for _ in range(12):
        ids = rng.sample(range(8), rng.randint(1, 8))
        rows = {s: rng.randint(1, 6) for s in ids}
        assert cut_by_llama(kind, unified, rows) == cutting.parts(rows), rows


@pytest.fixture
def cut_by_llama(
    tiny_llama: Path,
    tiny_lfm2: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[str, bool, Mapping[int, int]], list[PassPart]]:
    """Decode rows with a real context and read how its batch was cut."""
    from parlay.llama.library import C, start

    paths = {"llama": tiny_llama, "lfm2": tiny_lfm2}
    monkeypatch.setenv("LLAMA_BATCH_DEBUG", "1")
    start()

    def cut(kind: str, unified: bool, rows: Mapping[int, int]) -> list[PassPart]:
        model = C.llama_model_load_from_file(
            str(paths[kind]).encode(), C.llama_model_default_params()
        )
        params = C.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.kv_unified = 8 * 256, 8, unified
        params.n_batch, params.n_ubatch = 64, 32
        params.n_threads = params.n_threads_batch = 1
        context = C.llama_init_from_model(model, params)
        batch = C.llama_batch_init(64, 0, 1)
        pairs = [(s, p) for s in sorted(rows) for p in range(rows[s])]
        batch.n_tokens = len(pairs)
        for i, (s, p) in enumerate(pairs):
            batch.token[i], batch.pos[i], batch.logits[i] = 5, p, 1
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, s
        try:
            caplog.clear()
            with caplog.at_level(logging.DEBUG, "parlay.llama"):
                C.llama_set_warmup(context, False)
                assert C.llama_decode(context, batch) == 0
            found = [(m[1], int(m[2])) for r in caplog.messages if (m := _FIELD.search(r))]
        finally:
            C.llama_batch_free(batch)
            C.llama_free(context)
            C.llama_model_free(model)
        tokens = [n for name, n in found if name == "n_tokens"]
        sequences = [n for name, n in found if name == "n_seqs_unq"]
        parts = [PassPart(s, n) for s, n in zip(sequences, tokens, strict=True)]
        return parts[1:]  # the first is the whole batch

    return cut
