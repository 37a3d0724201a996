"""A trained drafter as GGUF: a llama with the target's tokenizer and chat template.

Quantises by itself, not through llama.cpp's quantiser: that one gives a tied head more bits than
asked for, and the head is most of what a small drafter reads for each token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType, GGUFValueType, LlamaFileType
from numpy.typing import NDArray

from parlay import store
from parlay.errors import BadRequest
from parlay.llama.facts import read_facts
from parlay_train.block.block_shape import BlockShape
from parlay_train.student_shape import StudentShape

TYPES = {
    "f32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "f16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
    "q4_0": (GGMLQuantizationType.Q4_0, LlamaFileType.MOSTLY_Q4_0),
}
# Written by the target's own converter; all of it concerns text, none of it weights.
_TAKEN_OVER = ("tokenizer.", "general.license")

Weights = Mapping[str, NDArray[np.float32]]


def export(
    path: Path,
    target: Path,
    shape: StudentShape,
    weights: Weights,
    file_type: str,
    facts: Mapping[str, str],
) -> Path:
    """Write `path`, whole or not at all. `facts` goes into the description, for people."""
    with written(path, target, "llama", "drafter", file_type, facts) as writer:
        add_shape(writer, shape)
        writer.add_vocab_size(shape.n_vocab)
        for name, array in weights.items():
            own = TYPES[file_type][0] if array.ndim == 2 else GGMLQuantizationType.F32
            writer.add_tensor(name, gguf.quants.quantize(array, own), raw_dtype=own)
    return path


@contextmanager
def written(
    path: Path, target: Path, architecture: str, kind: str, file_type: str, facts: Mapping[str, str]
) -> Iterator[Any]:
    """A GGUF of one file type, for its shape and weights to be added: what all drafters begin and
    end with, the target's tokenizer and chat template included."""
    if file_type not in TYPES:
        raise BadRequest(f"unknown file type {file_type!r}; use one of {', '.join(TYPES)}")
    with store.whole(path) as part:
        writer = gguf.GGUFWriter(part, architecture)
        writer.add_name(f"{read_facts(target).name or target.stem} {kind}")
        writer.add_description("; ".join(f"{key}: {value}" for key, value in facts.items()))
        writer.add_file_type(int(TYPES[file_type][1]))
        _take_over(writer, target)
        yield writer
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def add_shape(writer: Any, shape: StudentShape | BlockShape) -> None:
    """What every kind of drafter says of its layers."""
    writer.add_block_count(shape.n_layers)
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_heads)
    writer.add_head_count_kv(shape.n_kv_heads)
    writer.add_layer_norm_rms_eps(shape.eps)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_rope_freq_base(shape.rope_base)


def _take_over(writer: Any, target: Path) -> None:
    """The target's tokenizer and chat template."""
    for key, field in gguf.GGUFReader(target).fields.items():
        if not key.startswith(_TAKEN_OVER):
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
        if kind == GGUFValueType.ARRAY and not len(field.data):
            continue  # an empty list has no type to be written with
        writer.add_key_value(key, field.contents(), kind, sub_type=inner)
