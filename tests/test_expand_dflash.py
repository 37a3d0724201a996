"""A block drafter made large for a stand-in drafts what the small one drafts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest

from benchmarks.models.expand_dflash import expand
from parlay.decoding.span import Span
from parlay.decoding.states import Fed, States
from parlay.llama.context import Context
from parlay.llama.facts import read_facts
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.llama.state_context import StateContext
from tests import tiny_drafters, tiny_models
from tests.tiny_drafters import MASK

WIDTH, HEAD_SIZE = 64, 16  # of the small models
REAL = (0, 2, 3)  # where the small target's layers are in the large one; 1 adds nothing
READS = (0, 1, 2)
EXACT = ContextSettings(
    128, n_outputs=16, cache_type_k="f32", cache_type_v="f32", flash_attention="off"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("expanded")


@pytest.fixture(scope="module")
def source(folder: Path) -> Path:
    return tiny_models.write_llama(folder / "source.gguf", n_layers=3)


@pytest.fixture(scope="module")
def standin(folder: Path, source: Path) -> Path:
    """Four times as wide: every factor is a power of two."""
    path = folder / "standin.gguf"
    tiny_models.write_llama(path, n_embd=256, n_layers=4, n_heads=16, n_kv_heads=4, n_ff=256)
    large = gguf.GGUFReader(path, "r+")
    eps = large.get_field("llama.attention.layer_norm_rms_epsilon")
    assert eps is not None
    eps.parts[-1][0] *= 0.25
    small = {tensor.name: tensor.data for tensor in gguf.GGUFReader(source).tensors}
    for tensor in large.tensors:
        tensor.data[...] = 0.5 if tensor.data.ndim == 1 else 0
        _, _, rest = tensor.name.partition("blk.")
        layer, _, part = rest.partition(".")
        if rest and int(layer) not in REAL:
            continue
        found = small[f"blk.{REAL.index(int(layer))}.{part}" if rest else tensor.name]
        if found.ndim == 1:
            tensor.data[: len(found)] = found / 2
        elif part == "attn_q.weight":
            tensor.data[_queries(), : found.shape[1]] = found
        elif part == "attn_output.weight":
            tensor.data[np.arange(len(found))[:, None], _queries()] = found
        else:
            tensor.data[: found.shape[0], : found.shape[1]] = found
    large.data.flush()
    return path


def _queries() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Two query heads to a key head become the first two of four."""
    head = np.arange(4)
    return ((head // 2 * 4 + head % 2)[:, None] * HEAD_SIZE + np.arange(HEAD_SIZE)).ravel()


def logits(target: Path, drafter: Path) -> States:
    """What the drafter says of five masks, after twelve states."""
    tokens = list(range(5, 25))
    seen: list[States] = []
    with Model(target, ModelSettings()) as model, Model(drafter, ModelSettings()) as small:
        context = Context(model, EXACT)
        own = StateContext(small, EXACT, context)
        context.capture(own.layers, lambda _, states: seen.append(states[0]))
        context.decode([Span(0, 0, tokens, 1)])
        own.read([Fed(0, 0, seen[0][:12])])
        rows = own.decode([Span(0, 12, [tokens[12], *[MASK] * 5], 6)])[0]
        found = np.array(rows[1:], np.float32)
        own.close()
        context.close()
    return found


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("head_rows", [(), tuple(range(3, 99, 3))])
def test_it_says_the_same_of_every_mask(
    source: Path, standin: Path, tmp_path: Path, head_rows: Sequence[int], narrow: bool
) -> None:
    small = tiny_drafters.write_dflash(tmp_path / "d.gguf", layers=READS, head_rows=head_rows)
    large = tmp_path / "large.gguf"
    expand(small, source, standin, large, "f32", narrow)
    # Up to the order in which products are summed.
    np.testing.assert_allclose(logits(standin, large), logits(source, small), atol=2e-4)


@pytest.mark.parametrize("file_type", ["q4_0", "q8_0", "f16"])
def test_it_says_nearly_the_same_in_fewer_bits(
    source: Path, standin: Path, tmp_path: Path, file_type: str
) -> None:
    small = tiny_drafters.write_dflash(tmp_path / "d.gguf", layers=READS)
    large = tmp_path / "large.gguf"
    expand(small, source, standin, large, file_type)
    found, wanted = logits(standin, large), logits(source, small)
    bound = 0.35 if file_type == "q4_0" else 0.05
    assert np.linalg.norm(found - wanted) < bound * np.linalg.norm(wanted)


def test_its_layers_are_shaped_as_the_stand_ins(
    source: Path, standin: Path, tmp_path: Path
) -> None:
    small = tiny_drafters.write_dflash(tmp_path / "d.gguf", layers=READS)
    large = tmp_path / "large.gguf"
    n_params, n_bytes = expand(small, source, standin, large, "f16")
    facts = read_facts(large)
    assert (facts.n_embd, facts.n_layers) == (256, 2)
    header = gguf.GGUFReader(large)
    values = [
        header.get_field(f"dflash.{key}").contents()
        for key in ("attention.head_count", "feed_forward_length", "target_layers")
    ]
    assert values == [16, 256, [0, 2, 3]]
    assert 0 <= large.stat().st_size - n_bytes < 32_768
    per_layer = 2 * 256 * 256 + 2 * 256 * 64 + 3 * 256 * 256 + 2 * 256 + 2 * HEAD_SIZE
    assert n_params == 2 * per_layer + 3 * 256**2 + 2 * 256


def test_a_target_that_was_not_made_from_the_source_is_refused(
    source: Path, tiny_wide: Path, tmp_path: Path
) -> None:
    small = tiny_drafters.write_dflash(tmp_path / "d.gguf", layers=READS)
    with pytest.raises(SystemExit, match="not made from"):
        expand(small, source, tiny_wide, tmp_path / "large.gguf")
    assert not (tmp_path / "large.gguf").exists()


def test_what_is_no_block_drafter_is_refused(source: Path, standin: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="not a block drafter"):
        expand(source, source, standin, tmp_path / "large.gguf")
