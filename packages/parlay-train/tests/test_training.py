"""A drafter learns, can be interrupted, and its file computes what PyTorch computed."""

# ruff: noqa: E402 - what imports PyTorch comes after the question whether it is there

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from parlay.decoding.span import Span
from parlay.errors import BadRequest
from parlay.llama.context import Context
from parlay.llama.facts import read_facts
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.pairing.alignment import check_pair
from parlay_train.agreement import replayed
from parlay_train.corpus import Corpus
from parlay_train.distill import Trained, export_all, train
from parlay_train.embedding import projected_embedding
from parlay_train.export import export
from parlay_train.loss import divergence
from parlay_train.rounding import ROUNDING
from parlay_train.student import Student
from parlay_train.student_shape import PRESETS, StudentShape, preset
from parlay_train.text_batches import Table
from parlay_train.trainer import Recipe, Trainer, TrainingProgress, in_time, scheduled

RECIPE = Recipe(steps=60, batch_tokens=1024, learning_rate=5e-3, looks=3)


def trainer(written: Corpus, recipe: Recipe = RECIPE) -> Trainer:
    shape = preset("tiny", written.header.n_vocab, 256)
    tables = Table(written, "train", "cpu"), Table(written, "held_out", "cpu", greedy=True)
    return Trainer(shape, recipe, *tables, "cpu")


def test_the_loss_falls_and_agreement_rises(written: Corpus) -> None:
    one = trainer(written)
    losses: list[float] = []
    step = one._step

    def noted(texts: Any) -> None:
        step(texts)
        losses.append(float(one._losses[-1]))

    one._step = noted  # type: ignore[method-assign]
    one.run(None, lambda *_: None)
    assert len(losses) == RECIPE.steps
    assert np.mean(losses[-5:]) < 0.75 * np.mean(losses[:5])
    assert len(one.progress.looks) == RECIPE.looks


@pytest.mark.parametrize("file_type", ["f32", "f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_exported_file_computes_what_pytorch_computes(
    tiny_llama: Path, tmp_path: Path, file_type: str, tied: bool
) -> None:
    shape = StudentShape(64, 2, 4, 2, 96, tied=tied, n_vocab=271, n_ctx=128)
    student, noise = Student(shape, seed=3), torch.Generator().manual_seed(4)
    with torch.no_grad():  # norms that do something
        for name, weights in student.named_parameters():
            if name.endswith("norm"):
                weights.add_(0.3 * torch.randn(weights.shape, generator=noise))
            elif "output" in name or "down" in name:
                weights.mul_(5)
    weights = {name: each.numpy() for name, each in student.tensors().items()}
    path = export(tmp_path / "d.gguf", tiny_llama, shape, weights, file_type, {"a": "b"})
    tokens = list(range(3, 63))
    student.rounding = ROUNDING.get(file_type)
    with torch.no_grad():
        ours = (student(torch.tensor([tokens]))[0] @ student.head.T).numpy()
    with Model(path, ModelSettings()) as model:
        context = Context(model, ContextSettings(context_size=128))
        theirs = context.decode([Span(0, 0, tokens, len(tokens))])[0].copy()
        context.close()
    # Quantised products round the activations too; the cache is 16 bits wide.
    tolerance = {"f32": 0.02, "f16": 0.02, "q8_0": 0.06, "q4_0": 0.06}[file_type]
    assert np.abs(ours - theirs).max() < tolerance * np.abs(ours).max()


def test_the_drafter_has_the_targets_tokenizer_and_template(
    tiny_llama: Path, tmp_path: Path
) -> None:
    shape = preset("tiny", 271, 128)
    weights = {name: each.numpy() for name, each in Student(shape).tensors().items()}
    path = export(tmp_path / "d.gguf", tiny_llama, shape, weights, "q4_0", {})
    alignment = check_pair(tiny_llama, path)
    assert alignment.verdict == "identical", alignment.differences


def test_the_drafter_is_named_after_the_target_or_else_its_file(
    tiny_llama: Path, tmp_path: Path
) -> None:
    nameless = tmp_path / "nameless.gguf"
    nameless.write_bytes(tiny_llama.read_bytes().replace(b"general.name", b"general.nome"))
    shape = preset("tiny", 271, 128)
    weights = {name: each.numpy() for name, each in Student(shape).tensors().items()}
    for target, name in ((tiny_llama, "tiny llama drafter"), (nameless, "nameless drafter")):
        path = export(tmp_path / "d.gguf", target, shape, weights, "q4_0", {})
        assert read_facts(path).name == name


def test_an_interrupted_training_goes_on_where_it_stopped(written: Corpus, tmp_path: Path) -> None:
    recipe = replace(RECIPE, steps=24)
    path, whole = tmp_path / "c.pt", trainer(written, recipe)
    whole.run(None, lambda *_: None)
    stopped = trainer(written, recipe)
    step = stopped._step

    def interrupted(texts: Any) -> None:
        if stopped.progress.step == 10:
            raise KeyboardInterrupt
        step(texts)

    stopped._step = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        stopped.run(path, lambda *_: None)
    again = trainer(written, recipe)
    assert again.resume(path)
    assert again.progress.step == 10
    again.run(path, lambda *_: None)
    assert again.progress.step == recipe.steps
    assert again.progress.tokens_seen == whole.progress.tokens_seen
    # On average: how products are summed may depend on where they lie in memory.
    for a, b in zip(whole.student.parameters(), again.student.parameters(), strict=True):
        assert (a - b).abs().mean() < 1e-4


def test_a_checkpoint_of_another_shape_or_a_damaged_one_is_refused(
    written: Corpus, tmp_path: Path
) -> None:
    trainer(written).save(tmp_path / "c.pt")
    other = trainer(written, replace(RECIPE, seed=5))
    with pytest.raises(BadRequest, match="another preset or seed"):
        other.resume(tmp_path / "c.pt")
    (tmp_path / "c.pt").write_bytes(b"nothing")
    with pytest.raises(BadRequest, match="damaged"):
        other.resume(tmp_path / "c.pt")


def test_minutes_end_a_training_as_steps_do(written: Corpus) -> None:
    one = trainer(written, replace(RECIPE, steps=10**9, minutes=0.2 / 60))
    one.run(None, lambda *_: None)
    assert one.progress.seconds >= 0.2


def test_a_training_is_planned_for_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    begun = TrainingProgress(seconds=30.0)
    assert in_time(RECIPE, begun) == RECIPE
    half = in_time(replace(RECIPE, minutes=9.0, ends_at=now + 60), begun)
    assert half.minutes == pytest.approx(1.5)
    assert in_time(replace(RECIPE, minutes=0.1, ends_at=now + 60), begun).minutes == 0.1
    late = replace(RECIPE, ends_at=now - 1)
    assert in_time(late, begun).minutes == 0.5  # as much as there was: it is over
    with pytest.raises(BadRequest, match="before the training could begin"):
        in_time(late, TrainingProgress())
    assert json.loads(json.dumps(late.as_dict(), allow_nan=False))["minutes"] is None


def test_a_checkpoint_is_taken_as_it_is_where_no_time_is_left(
    written: Corpus, tiny_llama: Path, tmp_path: Path
) -> None:
    shape, checkpoint = preset("tiny", written.header.n_vocab, 256), tmp_path / "c.pt"

    def trained(recipe: Recipe) -> tuple[Trainer, Trained]:
        silent = (lambda *_: None), (lambda _: None)
        return train(tiny_llama, written.folder, shape, recipe, "cpu", checkpoint, *silent)

    _, first = trained(replace(RECIPE, steps=3))
    one, again = trained(replace(RECIPE, steps=10**9, ends_at=time.time() - 1))
    assert again.progress.step == first.progress.step == 3
    assert export_all(one, again, tiny_llama, tmp_path / "d.gguf", ("q4_0",))[0].is_file()


def test_the_gradient_of_the_loss_is_autograds(written: Corpus) -> None:
    noise = torch.Generator().manual_seed(0)
    hidden = torch.randn(7, 16, generator=noise, requires_grad=True)
    head = torch.randn(40, 16, generator=noise, requires_grad=True)
    p = torch.softmax(2 * torch.randn(7, 40, generator=noise), -1)
    top, ids = torch.topk(p, 6, -1)
    tail = (1 - top.sum(-1)).log()
    divergence(hidden, head, ids, top.log(), tail).backward()
    ours = hidden.grad.clone(), head.grad.clone()
    hidden.grad = head.grad = None
    q = torch.softmax(hidden @ head.T, -1).gather(1, ids)
    rest = 1 - q.sum(-1)
    plain = (top * (top.log() - q.log())).sum(-1) + tail.exp() * (tail - rest.log())
    plain.mean().backward()
    assert torch.allclose(ours[0], hidden.grad, atol=1e-5)
    assert torch.allclose(ours[1], head.grad, atol=1e-5)


@pytest.mark.parametrize("file_type", ["q4_0", "q8_0"])
def test_rounding_in_training_is_ggmls(file_type: str) -> None:
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize, quantize

    weights = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)
    kind = GGMLQuantizationType[file_type.upper()]
    expected = dequantize(quantize(weights, kind), kind)
    given = torch.from_numpy(weights).requires_grad_()
    rounded = ROUNDING[file_type](given)
    assert np.abs(rounded.detach().numpy() - expected).max() < 1e-3
    rounded.sum().backward()
    assert torch.equal(given.grad, torch.ones(64, 96))


def test_projected_embeddings_keep_the_products_of_rows(tiny_llama: Path) -> None:
    whole, part = projected_embedding(tiny_llama, 64), projected_embedding(tiny_llama, 32)
    assert part.shape == (271, 32)
    a, b = (m @ m.T for m in (whole, part))
    assert np.corrcoef(a.ravel(), b.ravel())[0, 1] > 0.8
    assert part.std() == pytest.approx(32**-0.5, rel=1e-3)


def test_a_table_predicts_each_answers_token_from_the_place_before_it(written: Corpus) -> None:
    table = Table(written, "all", "cpu")
    texts = list(written.texts())
    chosen = np.array([0, 3, 5])
    batch = table.batch(chosen)
    answers = np.concatenate([texts[i].answer for i in chosen])
    assert batch.tokens.flatten()[batch.rows + 1].tolist() == answers.tolist()
    kept = np.concatenate([texts[i].top_ids for i in chosen])
    assert np.array_equal(batch.top_ids.numpy(), kept)
    every = np.concatenate(table.epoch(2048, seed=1))
    assert sorted(every.tolist()) == list(range(len(texts)))


def test_replaying_agreement_counts_rounds_as_the_runtime_does() -> None:
    right = np.array([False, True, True, False, True, True, True, True, True, False])
    found = replayed([right], window=4)
    # Rounds: 2 accepted + own, then 4 accepted + own, then nothing is right: own.
    assert found.acceptance_length == pytest.approx((3 + 5 + 1) / 3)
    assert found.by_position == pytest.approx((2 / 3, 1.0, 0.5, 1.0))
    assert found.first_token == 0.7


def test_the_rate_rises_then_falls() -> None:
    rates = [scheduled(done / 100) for done in range(101)]
    assert rates[2] == max(rates) == 1.0
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert rates[100] < 0.02


def test_presets_fit_the_block_formats() -> None:
    for name in PRESETS:
        shape = preset(name, 49152, 1024)
        assert shape.n_embd % 32 == shape.n_ff % 32 == 0
        assert math.isfinite(shape.bytes_per_token("q4_0"))
    with pytest.raises(BadRequest, match="no preset"):
        preset("huge", 10, 10)
