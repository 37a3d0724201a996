"""A block drafter learns, can be interrupted, and its file computes what PyTorch computed."""

# ruff: noqa: E402 - what imports PyTorch comes after the question whether it is there

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from parlay import Parlay
from parlay.decoding.span import Span
from parlay.decoding.states import Fed, States
from parlay.errors import BadRequest
from parlay.llama.capture import token_embeddings
from parlay.llama.context import Context
from parlay.llama.facts import read_facts
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.llama.state_context import StateContext
from parlay_train.block.block_batches import BlockTable, frequent
from parlay_train.block.block_distill import (
    BlockSettings,
    export_blocks,
    read_tensor,
    train_blocks,
)
from parlay_train.block.block_loss import cross_entropy
from parlay_train.block.block_shape import (
    BlockPreset,
    BlockShape,
    block_preset,
    shape_for,
    spread,
)
from parlay_train.block.block_states import capture
from parlay_train.block.block_student import BlockStudent
from parlay_train.block.block_trainer import walked
from parlay_train.corpus import Corpus
from parlay_train.rounding import ROUNDING
from parlay_train.text_batches import Table
from parlay_train.trainer import Recipe
from tests.tiny_drafters import MASK

RECIPE = Recipe(steps=8, batch_tokens=1024, learning_rate=5e-3, looks=2)
SETTINGS = BlockSettings(block_preset("tiny"), n_tokens=2000)
LAYERS = (0, 1)
N_VOCAB = 271


def student(n_head_rows: int = 0, seed: int = 1) -> BlockStudent:
    """Norms and branches that do something."""
    shape = BlockShape(64, 2, 4, 2, 96, LAYERS, 6, MASK, N_VOCAB, n_head_rows, head_size=16)
    noise = torch.Generator().manual_seed(seed)
    head = torch.randn(n_head_rows or N_VOCAB, 64, generator=noise)
    made = BlockStudent(shape, torch.zeros(N_VOCAB, 64), head, seed)
    with torch.no_grad():
        for weights in made.parameters():
            weights.add_(0.1 * torch.randn(weights.shape, generator=noise))
        made.evened.add_(torch.rand(made.evened.shape, generator=noise))
    return made


def train(
    target: Path, written: Corpus, recipe: Recipe, checkpoint: Path | None = None
) -> tuple[BlockStudent, Any]:
    """Quietly."""
    folder = written.folder
    return train_blocks(
        target, folder, SETTINGS, recipe, checkpoint, lambda *_: None, lambda _: None
    )


@pytest.fixture(scope="module")
def trained(tiny_llama: Path, written: Corpus) -> tuple[BlockStudent, Any]:
    return train(tiny_llama, written, RECIPE)


def test_a_training_looks_at_held_out_text_and_reports(trained: tuple[BlockStudent, Any]) -> None:
    _, result = trained
    assert result.progress.step == RECIPE.steps
    assert len(result.progress.looks) == RECIPE.looks
    assert set(result.agreement) == {"f16", "q8_0", "q4_0"}
    assert result.as_dict()["recipe"]["minutes"] is None


def test_the_loss_falls(tiny_llama: Path, written: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parlay_train.trainer._SHOWN_S", -1.0)
    monkeypatch.setattr("parlay_train.trainer._KEPT_LOSSES", 2)
    losses: list[float] = []
    recipe = replace(RECIPE, steps=30, looks=1)
    settings = replace(SETTINGS, preset=replace(SETTINGS.preset, n_head_rows=0), n_tokens=2000)
    train_blocks(
        tiny_llama,
        written.folder,
        settings,
        recipe,
        None,
        lambda _progress, _done, loss: losses.append(loss),
        lambda _: None,
    )
    assert losses[-1] < 0.92 * losses[0]  # the tiny target is hardly surer than chance


@pytest.mark.parametrize("n_head_rows", [0, 100])
@pytest.mark.parametrize("file_type", ["f32", "q8_0", "q4_0"])
def test_the_exported_file_computes_what_pytorch_computes(
    tiny_llama: Path, tmp_path: Path, file_type: str, n_head_rows: int
) -> None:
    rows = np.sort(np.random.default_rng(0).permutation(N_VOCAB)[:n_head_rows])
    made = student(n_head_rows)
    exact = ContextSettings(
        128, n_outputs=16, cache_type_k="f32", cache_type_v="f32", flash_attention="off"
    )
    tokens = list(range(5, 25))
    seen: list[States] = []
    with Model(tiny_llama, ModelSettings()) as target:
        made.embedding = torch.from_numpy(token_embeddings(target))
        if not n_head_rows:
            made.borrowed = torch.from_numpy(read_tensor(tiny_llama, "output.weight"))
        path = export_blocks(
            tmp_path / "d.gguf", tiny_llama, made, rows if n_head_rows else None, file_type, {}
        )
        context = Context(target, exact)
        with Model(path, ModelSettings()) as drafter:
            own = StateContext(drafter, exact, context)
            context.capture(own.layers, lambda _, states: seen.append(states[0]))
            context.decode([Span(0, 0, tokens, 1)])
            own.read([Fed(0, 0, seen[0][:12])])
            theirs = own.decode([Span(0, 12, [tokens[12], *[MASK] * 5], 6)])[0][1:].copy()
            own.close()
        context.close()
    made.rounding = ROUNDING.get(file_type)
    with torch.no_grad():
        states = torch.from_numpy(seen[0])[None]
        hidden = made(states, torch.tensor([tokens]), torch.tensor([[12]]), 6)[0, 0]
        ours = (hidden @ made.head.T).numpy()
    if n_head_rows:
        assert np.isneginf(np.delete(theirs, rows, axis=1)).all()
        theirs = theirs[:, rows]
    # Quantised weights meet activations in 8 bits.
    tolerance = 1e-4 if file_type == "f32" else 0.05 * float(np.abs(ours).max())
    np.testing.assert_allclose(theirs, ours, atol=tolerance)


def test_the_drafter_runs_and_the_text_stays_plain(
    trained: tuple[BlockStudent, Any], tiny_llama: Path, tmp_path: Path
) -> None:
    made, result = trained
    path = export_blocks(tmp_path / "d.gguf", tiny_llama, made, result.head_rows, "q8_0", {})
    options: dict[str, Any] = {"draft": str(path), "window": 3, "context_size": 256}
    with Parlay(tiny_llama, mode="exact", **options) as parlay:
        drafted = parlay.generate("the cat and the", max_tokens=40, raw=True)
        plain = parlay.generate("the cat and the", max_tokens=40, raw=True, draft="none")
    assert drafted.text == plain.text
    with Parlay(tiny_llama, mode="faithful", **options) as parlay:  # no price forbids drafts
        drafted = parlay.generate("the cat and the", max_tokens=40, raw=True)
    assert drafted.speculation.n_drafted > 0


def test_an_interrupted_training_ends_where_a_whole_one_does(
    tiny_llama: Path, written: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = replace(RECIPE, steps=8)
    whole, _ = train(tiny_llama, written, short)
    checkpoint = tmp_path / "c.pt"

    def stop(progress: Any, _done: float, _loss: float) -> None:
        if progress.step >= 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("parlay_train.trainer._SHOWN_S", -1.0)
    folder = written.folder
    with pytest.raises(KeyboardInterrupt):
        train_blocks(tiny_llama, folder, SETTINGS, short, checkpoint, stop, lambda _: None)
    resumed, result = train(tiny_llama, written, short, checkpoint)
    assert result.progress.step == 8
    # On average: how products are summed may depend on where they lie in memory.
    assert (whole.fc - resumed.fc).abs().mean() < 1e-4


def test_a_checkpoint_of_another_seed_is_refused(
    tiny_llama: Path, written: Corpus, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "c.pt"
    train(tiny_llama, written, replace(RECIPE, steps=1), checkpoint)
    with pytest.raises(BadRequest, match="another preset or seed"):
        train(tiny_llama, written, replace(RECIPE, steps=1, seed=9), checkpoint)


def test_captured_states_are_those_of_a_pass_over_the_text(
    tiny_llama: Path, written: Corpus
) -> None:
    table = Table(written, "held_out", "cpu")
    captured = capture(tiny_llama, LAYERS, table, "cpu")
    text = int(np.argmax(captured.n_kept))
    n = int(captured.n_kept[text])
    tokens = table.batch(np.array([text])).tokens[0, :n].tolist()
    seen: list[Sequence[States]] = []
    with Model(tiny_llama, ModelSettings()) as model:
        context = Context(model, ContextSettings(512))
        context.capture(LAYERS, lambda _, states: seen.append(states))
        context.decode([Span(0, 0, tokens, 0)])
        context.close()
    at = int(captured.offset[text])
    found = captured.rows[at : at + n].float().numpy()
    np.testing.assert_allclose(found, seen[0][0], rtol=0.02, atol=0.02)


def test_a_block_sees_only_what_comes_before_it() -> None:
    made = student()
    states = torch.randn(1, 20, 128, generator=torch.Generator().manual_seed(2))
    tokens = torch.arange(20)[None] + 5
    anchors = torch.tensor([[8, 12]])
    with torch.no_grad():
        before = made(states, tokens, anchors, 5)
        states[:, 8:] = 0
        after = made(states, tokens, anchors, 5)
        alone = made(states[:, :9], tokens, anchors[:, :1], 5)
    torch.testing.assert_close(before[:, 0], after[:, 0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(after[:, 0], alone[:, 0], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(before[:, 1], after[:, 1])


def test_the_loss_and_its_gradients_are_those_of_plain_arithmetic() -> None:
    noise = torch.Generator().manual_seed(0)
    hidden = torch.randn(7, 8, generator=noise, requires_grad=True)
    head = torch.randn(11, 8, generator=noise, requires_grad=True)
    ids = torch.randint(0, 11, (7, 3), generator=noise)
    p, weight = torch.rand(7, 3, generator=noise), torch.rand(7, generator=noise)
    loss = cross_entropy(hidden, head, ids, p, weight)
    found = torch.autograd.grad(loss, (hidden, head))
    logq = torch.log_softmax(hidden @ head.T, -1).gather(1, ids)
    plain = -(weight[:, None] * p * logq).sum() / weight.sum()
    torch.testing.assert_close(loss, plain)
    for ours, theirs in zip(found, torch.autograd.grad(plain, (hidden, head)), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_labels_are_the_targets_own_choices_after_the_anchor(
    tiny_llama: Path, written: Corpus
) -> None:
    table = Table(written, "held_out", "cpu", greedy=True)
    captured = capture(tiny_llama, LAYERS, table, "cpu")
    text = int(np.argmax(captured.n_kept))
    anchor = int(table.answer_start[text]) + 2
    batch = BlockTable(table, captured, None).batch_at(
        np.array([text]), torch.tensor([[anchor]]), 3
    )
    n = int(batch.wanted.sum())
    assert n > 0
    follows = batch.tokens[0, anchor + 1 : anchor + 1 + n]
    assert batch.ids[:, 0].tolist() == follows.tolist()  # greedy text is the first choice
    assert batch.position.tolist() == list(range(n))


def test_tokens_the_own_head_lacks_are_not_asked_for(tiny_llama: Path, written: Corpus) -> None:
    table = Table(written, "held_out", "cpu", greedy=True)
    captured = capture(tiny_llama, LAYERS, table, "cpu")
    rows = frequent(table, 20)
    assert len(set(rows.tolist())) == 20
    batch = BlockTable(table, captured, torch.from_numpy(rows)).batch(np.array([0]), 4, 3, seed=0)
    assert batch.ids.max() < 20
    assert bool((batch.p == 0).any())


def test_a_walk_counts_rounds_as_the_runtime_does() -> None:
    # Nine tokens, the first given: 2 accepted + 1, none + 1, then 3 accepted + 1.
    found = walked([np.array([2, 0, 0, 0, 3, 0, 0, 0, 0])], window=3)
    assert found.acceptance_length == pytest.approx(8 / 3)
    assert found.by_position[0] == pytest.approx(2 / 3)


def test_layers_are_spread_and_shapes_follow_the_target(tiny_llama: Path) -> None:
    assert spread(30, 5) == (1, 8, 15, 22, 29)
    assert spread(2, 5) == (1,)
    shape = shape_for(block_preset("tiny"), read_facts(tiny_llama), MASK, 256)
    assert shape.n_embd == 64
    with pytest.raises(BadRequest, match="no preset"):
        block_preset("giant")
    with pytest.raises(BadRequest, match="a block of 1"):
        shape_for(BlockPreset(1, 64, 2, block_size=1), read_facts(tiny_llama), MASK, 256)
