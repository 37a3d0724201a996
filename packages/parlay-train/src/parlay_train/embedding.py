"""A start for the drafter's token embeddings: the principal components of the target's.

Reads that one tensor out of the target's file; every other weight stays unread.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray

from parlay.llama.header import read_parts

TENSOR = "token_embd.weight"
_ROWS = 4096

Matrix = NDArray[np.float32]


class Unreadable(Exception):
    """The target's embeddings cannot be had; the message says why."""


def projected_embedding(target: Path, width: int) -> Matrix:
    """[vocabulary, width], as spread out as a random start would be.

    The components are not centred: what should survive is the product of two rows.
    """
    tensor = _find(target)
    n_rows, n_in = int(tensor.shape[1]), int(tensor.shape[0])
    if n_in < width:
        raise Unreadable(f"the target's embeddings have {n_in} numbers, the drafter's {width}")
    gram = np.zeros((n_in, n_in))
    for at in range(0, n_rows, _ROWS):
        rows = _rows(tensor, at)
        gram += rows.T @ rows
    _, vectors = np.linalg.eigh(gram)
    basis = vectors[:, ::-1][:, :width].astype(np.float32)
    found = np.concatenate([_rows(tensor, at) @ basis for at in range(0, n_rows, _ROWS)])
    found *= width**-0.5 / max(float(found.std()), 1e-12)
    return found


def _find(target: Path):  # type: ignore[no-untyped-def]  # gguf has no types
    for header in read_parts(target):
        if any(tensor.name == TENSOR for tensor in header.tensors):
            reader = GGUFReader(header.path)
            return next(tensor for tensor in reader.tensors if tensor.name == TENSOR)
    raise Unreadable(f"{target.name} has no {TENSOR}")


def _rows(tensor, at: int) -> Matrix:  # type: ignore[no-untyped-def]
    try:
        rows: Matrix = dequantize(tensor.data[at : at + _ROWS], tensor.tensor_type)
    except NotImplementedError:
        raise Unreadable(f"{tensor.tensor_type.name} cannot be read outside llama.cpp") from None
    return rows
