"""From written text to a block drafter: capture the target's states, train, export as GGUF.

Puts the parts together; knows neither the command line nor how a drafter is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.constants import GGMLQuantizationType, TokenType
from numpy.typing import NDArray

from parlay.errors import BadRequest
from parlay.llama.capture import token_embeddings
from parlay.llama.facts import read_facts
from parlay.llama.header import read_parts
from parlay.llama.model import Model
from parlay.llama.settings import ModelSettings
from parlay_train.agreement import Agreement
from parlay_train.block.block_batches import BlockTable, frequent
from parlay_train.block.block_shape import PRESETS, BlockPreset, BlockShape, shape_for
from parlay_train.block.block_states import capture
from parlay_train.block.block_student import BlockStudent
from parlay_train.block.block_trainer import BlockTrainer, block_agreement
from parlay_train.corpus import Corpus
from parlay_train.export import TYPES, add_shape, written
from parlay_train.rounding import ROUNDING
from parlay_train.text_batches import Table
from parlay_train.trainer import Recipe, Watch, in_time
from parlay_train.training_outcome import TrainingOutcome, export_paths

HELD_OUT_TOKENS = 20_000
_SAMPLE = 65_536  # tokens whose states tell how large their numbers are
_LONGEST = 4096  # positions the drafter is ever trained on

Matrix = NDArray[np.float32]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BlockSettings:
    """What to train, on how much text."""

    preset: BlockPreset = PRESETS["base"]
    n_tokens: int = 4_000_000  # generated ones; their states must fit into memory
    device: str = "cpu"
    gpu_layers: int = -1
    threads: int = 0


@dataclass(frozen=True)
class BlockTrained(TrainingOutcome):
    """A head on the target's states."""

    shape: BlockShape
    n_tokens: int
    head_rows: NDArray[np.int64] | None  # tokens of its own head

    def as_dict(self) -> dict[str, Any]:
        return {
            "shape": asdict(self.shape),
            "parameters": self.shape.n_params,
            "tokens": self.n_tokens,
            **super().as_dict(),
        }


def train_blocks(
    target: Path,
    corpus: Path,
    settings: BlockSettings,
    recipe: Recipe,
    checkpoint: Path | None,
    watch: Watch,
    say: Say,
) -> tuple[BlockStudent, BlockTrained]:
    """Train a block drafter on what was written, from its checkpoint if there is one."""
    text = Corpus(corpus)
    if not text.paths:
        raise BadRequest(f"{corpus} holds no written text yet")
    train = Table(text, "train", settings.device, limit=settings.n_tokens)
    held_out = Table(text, "held_out", settings.device, greedy=True, limit=HELD_OUT_TOKENS)
    if not len(train):
        raise BadRequest(f"{corpus} holds too little text; write more")
    if not len(held_out):
        say("no text was held out: the looks are at text it learns from; write more")
        held_out = Table(text, "train", settings.device, limit=HELD_OUT_TOKENS)
    shape = shape_for(settings.preset, read_facts(target), _unused(target, train), _LONGEST)
    head_rows = frequent(train, shape.n_head_rows) if shape.n_head_rows else None
    student = _student(target, shape, head_rows, recipe.seed).to(settings.device)
    learned = _blocks(target, shape, train, settings, head_rows, say)
    looked_at = _blocks(target, shape, held_out, settings, head_rows, say)
    rows = None if head_rows is None else torch.from_numpy(head_rows).to(settings.device)
    student.even_out(learned.sample(_SAMPLE))
    trainer = BlockTrainer(student, recipe, learned, looked_at, rows)
    if checkpoint is not None and trainer.resume(checkpoint):
        say(f"going on from step {trainer.progress.step}")
    trainer.recipe = in_time(recipe, trainer.progress)
    if trainer.done < 1:
        trainer.run(checkpoint, watch)
    found = _compare(trainer, rows)
    return student, BlockTrained(
        trainer.recipe, trainer.progress, found, shape, train.n_generated, head_rows
    )


def _blocks(
    target: Path,
    shape: BlockShape,
    table: Table,
    settings: BlockSettings,
    head_rows: NDArray[np.int64] | None,
    say: Say,
) -> BlockTable:
    n_all = int(table.length.sum())
    shown = 0

    def show(n: int) -> None:
        nonlocal shown
        if n - shown >= n_all // 10:
            say(f"captured the states of {n:,} of {n_all:,} tokens")
            shown = n

    captured = capture(
        target,
        shape.layers,
        table,
        settings.device,
        gpu_layers=settings.gpu_layers,
        threads=settings.threads,
        show=show,
    )
    return BlockTable(table, captured, None if head_rows is None else torch.from_numpy(head_rows))


def _compare(trainer: BlockTrainer, head_rows: Any) -> dict[str, Agreement]:
    """What each file type keeps of the drafter."""
    student = trainer.student
    found: dict[str, Agreement] = {}
    for file_type in ("f16", "q8_0", "q4_0"):
        student.rounding = ROUNDING.get(file_type)
        found[file_type] = block_agreement(student, trainer.held_out, head_rows)
    student.rounding = None
    return found


# -- what is taken from the target ------------------------------------------------------------


def _student(
    target: Path, shape: BlockShape, head_rows: NDArray[np.int64] | None, seed: int
) -> BlockStudent:
    with Model(target, ModelSettings(gpu_layers=0)) as model:
        embedding = token_embeddings(model)
    head = read_tensor(target, "output.weight")
    head = embedding if head is None else head
    if head_rows is not None:
        head = head[head_rows]
    student = BlockStudent(shape, torch.from_numpy(embedding), torch.from_numpy(head), seed)
    norm = read_tensor(target, "output_norm.weight")
    if norm is not None:
        # As the target weighs them, but quietly: what is random yet should not be sure of itself.
        loud = float(np.sqrt(((head * norm) ** 2).sum(-1)).mean())
        with torch.no_grad():
            student.output_norm.copy_(torch.from_numpy(norm / max(loud, 1e-6)))
    return student


def read_tensor(target: Path, name: str) -> Matrix | None:
    """One of the target's tensors, if it has it."""
    for header in read_parts(target):
        if any(tensor.name == name for tensor in header.tensors):
            found = next(t for t in gguf.GGUFReader(header.path).tensors if t.name == name)
            # A copy, not a view of the file.
            return np.array(gguf.quants.dequantize(found.data, found.tensor_type), np.float32)
    return None


def _unused(target: Path, table: Table) -> int:
    """A control token that no text holds stands for what is not known yet."""
    field = gguf.GGUFReader(target).get_field("tokenizer.ggml.token_type")
    kinds = np.array(field.contents() if field is not None else [], np.int64)
    seen: set[int] = set()
    for texts in table.epoch(1 << 18, seed=0):
        seen |= set(np.unique(table.batch(texts).tokens.cpu().numpy()).tolist())
    free = [int(t) for t in np.flatnonzero(kinds == TokenType.CONTROL) if int(t) not in seen]
    rare = [t for t in range(read_facts(target).n_vocab - 1, -1, -1) if t not in seen]
    if not free and not rare:
        raise BadRequest("the text holds every token there is; none is left to stand for a mask")
    return free[-1] if free else rare[0]


# -- the file ---------------------------------------------------------------------------------


def export_blocks(
    path: Path,
    target: Path,
    student: BlockStudent,
    head_rows: NDArray[np.int64] | None,
    file_type: str,
    facts: Mapping[str, str],
) -> Path:
    """Write `path`, whole or not at all, as llama.cpp's architecture `dflash`."""
    with written(path, target, "dflash", "block drafter", file_type, facts) as writer:
        _add_shape(writer, student.shape)
        writer.add_mask_token_id(student.shape.mask)
        for name, weights in student.tensors().items():
            array = weights.numpy()
            own = _tensor_type(name, array.ndim, TYPES[file_type][0])
            writer.add_tensor(name, gguf.quants.quantize(array, own), raw_dtype=own)
        if head_rows is not None:
            writer.add_tensor("d2t", head_rows.astype(np.int64))
    return path


def export_all_blocks(
    student: BlockStudent, trained: BlockTrained, target: Path, out: Path, types: tuple[str, ...]
) -> list[Path]:
    """`out` in the first file type, and beside it one file for each further type."""
    facts = {
        "distilled for": target.name,
        "tokens seen": f"{trained.progress.tokens_seen:,}",
        "made by": "parlay train --kind dflash",
    }
    return [
        export_blocks(path, target, student, trained.head_rows, file_type, facts)
        for path, file_type in zip(export_paths(out, types), types, strict=True)
    ]


def _tensor_type(name: str, n_dims: int, kind: GGMLQuantizationType) -> GGMLQuantizationType:
    if n_dims != 2:
        return GGMLQuantizationType.F32
    if name == "fc.weight" and kind != GGMLQuantizationType.F32:
        return GGMLQuantizationType.F16  # its columns differ a thousandfold in size
    return kind


def _add_shape(writer: Any, shape: BlockShape) -> None:
    add_shape(writer, shape)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_uint32("dflash.block_size", shape.block_size)
    writer.add_array("dflash.target_layers", list(shape.layers))
