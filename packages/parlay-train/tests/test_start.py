"""A drafter is started from exactly as its file has it, exported again unchanged, or refused."""

# ruff: noqa: E402 - what imports PyTorch comes after the question whether it is there

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch")

from parlay.decoding.span import Span
from parlay.errors import BadRequest, ModelFileError, ParlayError
from parlay.llama.context import Context
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay_train.agreement import agreement
from parlay_train.corpus import Corpus
from parlay_train.distill import Trained, export_all, train
from parlay_train.export import export
from parlay_train.rounding import ROUNDING
from parlay_train.start import Start, read_start
from parlay_train.student import Student
from parlay_train.student_shape import StudentShape
from parlay_train.text_batches import Table
from parlay_train.trainer import Recipe, Trainer

SHAPE = StudentShape(64, 2, 4, 2, 96, n_vocab=271, n_ctx=256, rope_base=20_000.0)
RECIPE = Recipe(steps=4, batch_tokens=1024, learning_rate=1e-3, looks=1)
TOKENS = list(range(3, 63))


def student(shape: StudentShape = SHAPE) -> Student:
    """A drafter whose every weight matters."""
    made = Student(shape, seed=3)
    noise = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, weights in made.named_parameters():
            if name.endswith("norm"):
                weights.add_(0.3 * torch.randn(weights.shape, generator=noise))
            elif "output" in name or "down" in name:
                weights.mul_(5)
    return made


def drafter(path: Path, target: Path, made: Student, file_type: str = "q4_0") -> Path:
    weights = {name: each.numpy() for name, each in made.tensors().items()}
    return export(path, target, made.shape, weights, file_type, {})


def logits(path: Path) -> NDArray[np.float32]:
    with Model(path, ModelSettings()) as model:
        context = Context(model, ContextSettings(context_size=128))
        rows: NDArray[np.float32] = context.decode([Span(0, 0, TOKENS, len(TOKENS))])[0].copy()
        context.close()
    return rows


def trained(
    written: Corpus, target: Path, checkpoint: Path, begin: Start, recipe: Recipe, say: list[str]
) -> tuple[Trainer, Trained]:
    args = target, written.folder, begin.shape, recipe, "cpu", checkpoint
    return train(*args, lambda *_: None, say.append, begin)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("file_type", ["q4_0", "q8_0", "f16"])
def test_a_file_is_read_as_it_was_written(
    tiny_llama: Path, tmp_path: Path, file_type: str, tied: bool
) -> None:
    made = student(replace(SHAPE, tied=tied))
    begin = read_start(drafter(tmp_path / "d.gguf", tiny_llama, made, file_type), tiny_llama, 128)
    assert replace(begin.shape, eps=SHAPE.eps) == made.shape
    assert begin.shape.eps == pytest.approx(SHAPE.eps)
    assert ("output.weight" in begin.weights) is not tied
    rounded = ROUNDING.get(file_type, lambda matrix: matrix.half().float())
    for name, weights in made.tensors().items():
        kept = rounded(weights) if weights.ndim == 2 else weights
        assert np.allclose(begin.weights[name], kept.numpy(), atol=1e-6), name


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("file_type", ["q4_0", "q8_0", "f16"])
def test_what_is_exported_right_after_the_start_computes_what_the_file_does(
    tiny_llama: Path, tmp_path: Path, file_type: str, tied: bool
) -> None:
    first = drafter(tmp_path / "a.gguf", tiny_llama, student(replace(SHAPE, tied=tied)), file_type)
    begin = read_start(first, tiny_llama, 128)
    fresh = Student(begin.shape, seed=9)
    fresh.take(begin.weights)
    second = drafter(tmp_path / "b.gguf", tiny_llama, fresh, file_type)
    assert np.array_equal(logits(first), logits(second))


def test_before_the_first_step_a_training_has_the_files_loss_and_agreement(
    written: Corpus, tiny_llama: Path, tmp_path: Path
) -> None:
    path = drafter(tmp_path / "d.gguf", tiny_llama, student())
    begin, rounded, said = read_start(path, tiny_llama, 256), student(), list[str]()
    rounded.rounding = ROUNDING["q4_0"]  # what the file keeps of it
    losses: list[float] = []
    learn = Trainer._learn

    def noted(self: Trainer, texts: Any) -> tuple[Any, int]:
        loss, n = learn(self, texts)
        if not losses:
            here, self.student = self.student, rounded
            losses.extend(each.detach().item() for each in (loss, learn(self, texts)[0]))
            self.student = here
        return loss, n

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_learn", noted)
        _, found = trained(written, tiny_llama, tmp_path / "c.pt", begin, RECIPE, said)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    held_out = Table(written, "held_out", "cpu", greedy=True)
    assert found.before is not None
    # Of some hundred tokens one may be as good as tied, and rounded apart.
    own = agreement(rounded, held_out).first_token
    assert found.before.first_token == pytest.approx(own, abs=0.01)
    assert found.start == "the weights of d.gguf" and found.as_dict()["before"]
    assert "starting from d.gguf" in said[0] and "learning rate 0.001" in said[0]


def test_a_checkpoint_wins_over_the_file(written: Corpus, tiny_llama: Path, tmp_path: Path) -> None:
    begin = read_start(drafter(tmp_path / "d.gguf", tiny_llama, student()), tiny_llama, 256)
    args = written, tiny_llama, tmp_path / "c.pt", begin
    one, _ = trained(*args, RECIPE, [])
    again, found = trained(*args, RECIPE, [])
    assert found.start == "a checkpoint" and found.before is None
    for a, b in zip(one.student.parameters(), again.student.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not np.allclose(
        one.student.tensors()["output_norm.weight"], begin.weights["output_norm.weight"]
    )
    assert export_all(again, found, tiny_llama, tmp_path / "e.gguf", ("q4_0",))[0].is_file()


def test_the_preset_is_the_files_or_none(tiny_llama: Path, tmp_path: Path) -> None:
    tiny = Student(StudentShape(32, 1, 1, 1, 64, n_vocab=271))
    begin = read_start(drafter(tmp_path / "d.gguf", tiny_llama, tiny), tiny_llama, 128)
    begin.check_preset("tiny")
    for name in ("small", "huge"):
        with pytest.raises(BadRequest, match="leave the preset out"):
            begin.check_preset(name)


def test_longer_texts_than_the_file_knows_have_positions(tiny_llama: Path, tmp_path: Path) -> None:
    path = drafter(tmp_path / "d.gguf", tiny_llama, student())
    assert read_start(path, tiny_llama, 128).shape.n_ctx == 256
    assert read_start(path, tiny_llama, 512).shape.n_ctx == 512


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"architecture": "qwen2"}, "architecture is qwen2"),
        ({"tokens": ["a"] * 271}, "vocabulary"),
        ({"tokens": ["a"] * 300}, "vocabulary"),
        ({"without": "blk.1.ffn_up.weight"}, "blk.1.ffn_up.weight is absent"),
        ({"more": "rope_freqs.weight"}, "rope_freqs.weight, which training does not know"),
        ({"scaled": True}, "positions are scaled"),
        ({"n_heads": 3}, "heads do not divide"),
        ({"n_kv_heads": 1}, "attn_k.weight is 64x32, not 64x16"),
    ],
)
def test_a_file_that_cannot_be_trained_on_is_refused_in_one_line(
    tiny_llama: Path, tmp_path: Path, change: Mapping[str, Any], why: str
) -> None:
    good = drafter(tmp_path / "good.gguf", tiny_llama, student(), "f16")
    bad = changed(good, tmp_path / "bad.gguf", change)
    with pytest.raises(ParlayError, match=why) as refused:
        read_start(bad, tiny_llama, 128)
    assert "\n" not in str(refused.value)


def test_what_is_no_model_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("no model at all")
    for path in (tmp_path / "text.gguf", tmp_path / "none.gguf"):
        with pytest.raises(ModelFileError):
            read_start(path, tiny_llama, 128)


def changed(source: Path, made: Path, change: Mapping[str, Any]) -> Path:
    """The file with one thing changed."""
    reader = gguf.GGUFReader(source)
    arch = change.get("architecture", "llama")
    writer = gguf.GGUFWriter(made, arch)
    given = {
        "tokenizer.ggml.tokens": change.get("tokens"),
        "llama.attention.head_count": change.get("n_heads"),
        "llama.attention.head_count_kv": change.get("n_kv_heads"),
    }
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        array = field.types[0] == gguf.GGUFValueType.ARRAY
        inner = field.types[-1] if array else None
        value = given.get(key) or field.contents()
        writer.add_key_value(key.replace("llama.", f"{arch}."), value, field.types[0], inner)
    if change.get("scaled"):
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    for tensor in reader.tensors:
        if tensor.name != change.get("without"):
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    if more := change.get("more"):
        writer.add_tensor(more, np.ones(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return made
