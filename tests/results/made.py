"""Results made from scripted runs, so that they are whole and consistent without a model."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from parlay.bench.community import Submission, build
from parlay.bench.record import ArmInfo, Gpu, Machine, ModelInfo, Record, dump
from parlay.bench.result import Setting, assemble, finish
from parlay.bench.run import Runner, RunOptions, SampleFile, header
from parlay.bench.suite import Prompt, load_suite
from tests.bench.scripted import PLAIN, SUFFIX, Clock, Scripted, noisy

MACHINE = Machine(
    cpu="AMD Ryzen 9 7950X",
    n_cores=16,
    n_threads=16,
    memory_bytes=64 << 30,
    memory_bandwidth=60e9,
    cache_bytes=64 << 20,
    os="Linux 6.8 x86_64",
    python="3.12.1",
    llama_cpp="b9999",
)
GPU = Gpu(name="NVIDIA GeForce RTX 4090", memory_bytes=24 << 30, nominal_bandwidth=1.008e12)
TARGET = ModelInfo(
    name="Qwen2.5-3B-Instruct-Q8_0",
    architecture="qwen2",
    file_type="Q8_0",
    tensor_type="Q8_0",
    n_params=3_085_000_000,
    file_bytes=3_290_000_000,
    tensor_bytes=3_280_000_000,
    sha256="ab" * 32,
)


def _other_text(prompt: Prompt) -> str:
    return f"answer to {prompt.id}" if prompt.id != "code-01" else "answer tX something else"


@cache
def record(
    ratio: float = 1.5, n_repeats: int = 5, gpu: bool = False, seed: int = 1, speed: float = 15.0
) -> Record:
    """A run of core-12 at `speed` tokens a second, and `ratio` times that with drafts."""
    suite, clock = load_suite("core-12"), Clock()
    options = RunOptions(n_repeats=n_repeats, seed=seed)
    arms = {
        "plain": Scripted(PLAIN, clock, noisy(speed, 0.01, seed)),
        "suffix": Scripted(
            SUFFIX, clock, noisy(speed * ratio, 0.03, seed + 1), _other_text, accepted_share=0.45
        ),
    }
    infos: dict[str, ArmInfo] = {name: arm.info for name, arm in arms.items()}
    with tempfile.TemporaryDirectory() as folder:
        file = SampleFile(Path(folder) / "s.jsonl", header(suite, arms, options))
        run = Runner(suite, arms, options, file, clock=clock).run()
    machine = MACHINE.model_copy(update={"gpus": [GPU]}) if gpu else MACHINE
    setting = Setting(suite, options, infos, machine, TARGET)
    return assemble(setting, run)


def fields(made: Record) -> dict[str, Any]:
    """As JSON, to be tampered with."""
    found: dict[str, Any] = json.loads(dump(made))
    return found


def changed(made: Record, **update: Any) -> Record:
    """With other fields and the hash that goes with them."""
    return finish(made.model_copy(update=update))


def submission(name: str = "ryzen7950x", notes: str = "", **options: Any) -> Submission:
    return build(name, notes, [record(**options)])
