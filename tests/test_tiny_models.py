"""The tiny models load in llama.cpp, decode, and differ as much as their makers promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from parlay.decoding.span import Span
from parlay.llama.context import Context
from parlay.llama.facts import read_facts
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
from tests import tiny_models
from tests.requantise import requantise

Writer = Callable[..., Path]
Logits = npt.NDArray[np.float32]
WRITERS = [
    tiny_models.write_llama,
    tiny_models.write_gemma3,
    tiny_models.write_mamba,
    tiny_models.write_lfm2,
]
ALL_WRITERS = list(tiny_models.WRITERS.values())
PROMPT = "the cat sat on the mat and"
N_CTX = 256

every_architecture = pytest.mark.parametrize("write", ALL_WRITERS, ids=lambda w: w.__name__[6:])
each_architecture = pytest.mark.parametrize("write", WRITERS, ids=lambda w: w.__name__[6:])


class Decoder:
    """One sequence of one model, from its first token on."""

    def __init__(self, context: Context) -> None:
        self.vocab = context.model.vocabulary
        self._context = context
        self._n_past = 0

    def tokenise(self, text: str) -> list[int]:
        return self.vocab.tokenize(text, bos=False)

    def decode(self, tokens: Sequence[int]) -> Logits:
        """Logits after each token, one row for each."""
        (rows,) = self._context.decode([Span(0, self._n_past, tokens, len(tokens))])
        self._n_past += len(tokens)
        return np.array(rows)

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        text: list[int] = []
        logits = self.decode(prompt)
        while len(text) < n:
            text.append(int(logits[-1].argmax()))
            logits = self.decode(text[-1:])
        return text


@contextmanager
def loaded(path: Path) -> Iterator[Decoder]:
    settings = ContextSettings(N_CTX, threads=1, n_outputs=N_CTX)
    with Model(path, ModelSettings()) as model:
        context = Context(model, settings)
        yield Decoder(context)
        context.close()


def greedy_text(path: Path, n: int = 64) -> list[int]:
    with loaded(path) as decoder:
        return decoder.greedy(decoder.tokenise(PROMPT), n)


def agreement(target: Path, drafter: Path) -> float:
    """Share of the target's greedy text that the drafter would have proposed, token by token."""
    text = greedy_text(target, 128)
    with loaded(drafter) as decoder:
        prompt = decoder.tokenise(PROMPT)
        logits = decoder.decode([*prompt, *text])[len(prompt) - 1 : -1]
    return float(np.mean(logits.argmax(axis=1) == text))


@every_architecture
def test_every_architecture_decodes_to_lively_text(tmp_path: Path, write: Writer) -> None:
    path = write(tmp_path / "model.gguf")
    with loaded(path) as decoder:
        logits = decoder.decode(decoder.tokenise(PROMPT))
    assert np.isfinite(logits).all()
    assert 1 < logits.std() < 6  # neither flat nor certain
    assert len(set(greedy_text(path))) > 20


@each_architecture
def test_a_perturbed_copy_is_a_drafter_that_is_often_right(tmp_path: Path, write: Writer) -> None:
    target = write(tmp_path / "target.gguf")
    drafter = tiny_models.perturb(target, tmp_path / "drafter.gguf")
    assert 0.3 < agreement(target, drafter) < 0.9


def test_a_recurrent_state_does_not_explode_however_much_noise(
    tmp_path: Path, tiny_mamba: Path
) -> None:
    with loaded(tiny_models.perturb(tiny_mamba, tmp_path / "noisy.gguf", noise=1.0)) as decoder:
        logits = decoder.decode(decoder.tokenise(PROMPT * 4))
    assert np.isfinite(logits).all()


@each_architecture
def test_the_seed_decides_every_byte(tmp_path: Path, write: Writer) -> None:
    first, again = write(tmp_path / "1.gguf", seed=5), write(tmp_path / "2.gguf", seed=5)
    other = write(tmp_path / "3.gguf", seed=6)
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()


@pytest.mark.parametrize("ftype", ["f32", "f16", "q8_0", "q4_0"])
@each_architecture
def test_file_types_are_written_and_perturbed(tmp_path: Path, write: Writer, ftype: str) -> None:
    path = write(tmp_path / "model.gguf", ftype=ftype)
    copy = tiny_models.perturb(path, tmp_path / "copy.gguf")
    assert read_facts(path).tensor_type == ftype.upper()
    assert len(set(greedy_text(copy, 32))) > 8


def test_a_model_in_several_files_is_the_same_model(tmp_path: Path, tiny_llama: Path) -> None:
    first = tiny_models.write_llama(tmp_path / "model.gguf", max_tensors=8)
    assert first.name == "model-00001-of-00003.gguf"
    assert greedy_text(first) == greedy_text(tiny_llama)


@pytest.mark.parametrize("ftype", ["q4_k_m", "q6_k", "q8_0", "f16"])
def test_a_wide_model_can_be_requantised(tmp_path: Path, tiny_wide: Path, ftype: str) -> None:
    path = requantise(tiny_wide, tmp_path / f"{ftype}.gguf", ftype)
    facts = read_facts(path)
    assert facts.file_type == ftype.upper()
    assert facts.tensor_type == ftype.upper().removesuffix("_M").removesuffix("_S")
    assert len(set(greedy_text(path, 32))) > 8


@pytest.mark.weights
@pytest.mark.parametrize("ftype", ["q4_0", "q8_0", "f16", "q4_k_m"])
def test_the_default_model_is_requantised_once(
    smollm2_as: Callable[[str], Path], ftype: str
) -> None:
    path = smollm2_as(ftype)
    written = path.stat().st_mtime_ns
    assert read_facts(path).file_type == ftype.upper()
    assert smollm2_as(ftype).stat().st_mtime_ns == written
