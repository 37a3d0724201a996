"""Writes tiny LoRA adapters with random weights, for tiny models and for the wrong ones.

Knows the layout of an adapter's file; the models are `tests/tiny_models.py`'s.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from parlay.llama.header import read_parts


def write_lora(
    path: Path,
    target: Path,
    *,
    name: str = "ffn_down.weight",
    rank: int = 4,
    extra: int = 0,
    architecture: str | None = None,
    seed: int = 0,
) -> Path:
    """Change every layer's tensor of that name; `extra` makes it wider than the target's."""
    header = read_parts(target)[0]
    rng = np.random.default_rng(seed)
    own = architecture or header.text("general.architecture") or ""
    writer = gguf.GGUFWriter(path, own)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(rank))
    for tensor in header.tensors:
        if tensor.name.endswith(name) and len(tensor.dims) == 2 and "embd" not in tensor.name:
            n_in, n_out = tensor.dims[0] + extra, tensor.dims[1]
            a = rng.standard_normal((rank, n_in), dtype=np.float32) * 0.1
            b = rng.standard_normal((n_out, rank), dtype=np.float32) * 0.1
            writer.add_tensor(f"{tensor.name}.lora_a", a)
            writer.add_tensor(f"{tensor.name}.lora_b", b)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
