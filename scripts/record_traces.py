"""Records what each proposer would have drafted at every position of the default model's answers.

Knows models and proposers, no controller. Takes some minutes of CPU; writes one file per category
to tools/replay/data/traces, the recordings that `python -m tools.replay` plays.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFWriter

from parlay import models
from parlay.bench.suite import Prompt, load_suite
from parlay.decoding.span import Span
from parlay.llama.context import Context
from parlay.llama.library import start
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.proposers.drafting import confidence
from parlay.proposers.lookup import Lookup
from parlay.proposers.proposer import Ask, Proposer
from tests.requantise import requantise
from tools.replay.recording import RecordedOffer, Recording, save_recordings

SUITE = "core-60"
DEPTH = 16
# A close copy of the target, and one about as far from it as a real drafter: two layers left out.
DRAFTERS = {"model": "requantised to q4_0", "pruned": "without layers 14 and 20"}
PRUNED_LAYERS = (14, 20)
CHUNK = 64
FOLDER = Path(__file__).parent.parent / "tools/replay/data/traces"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=144, help="longest answer")
    parser.add_argument("--prompts", type=int, default=None, help="so many of the suite, then stop")
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    start()
    target_path = models.default_model(print)
    prompts = load_suite(SUITE).prompts[: options.prompts]
    with tempfile.TemporaryDirectory() as folder:
        drafter_paths = {
            "model": requantise(target_path, Path(folder) / "model.gguf", "q4_0"),
            "pruned": prune(target_path, Path(folder) / "pruned.gguf", PRUNED_LAYERS),
        }
        recorder = Recorder(target_path, drafter_paths, options.tokens)
        by_category: dict[str, list[Recording]] = defaultdict(list)
        for prompt in prompts:
            by_category[prompt.category].append(recorder.record(prompt))
            print(prompt.id, summary(by_category[prompt.category][-1]), flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    facts = {"target": target_path.name, "suite": SUITE, "drafters": DRAFTERS, "sampling": "greedy"}
    for category, recordings in by_category.items():
        save_recordings(options.out / f"{category}.jsonl.gz", facts, recordings)


def summary(recording: Recording) -> str:
    """Tokens, and per proposer the accepted tokens per draft and the drafted ones."""
    parts = [f"{recording.n_tokens} tokens"]
    for name, offers in recording.offers.items():
        drafted = [o for o in offers if o.confidence]
        accepted = sum(o.n_accepted for o in drafted) / max(1, len(drafted))
        parts.append(f"{name} {accepted:.1f} of {len(drafted)}")
    return ", ".join(parts)


def prune(source: Path, made: Path, layers: Sequence[int]) -> Path:
    """A copy of a model with some layers left out."""
    reader = GGUFReader(source)
    writer = GGUFWriter(made, arch="llama")
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture")):
            fewer = len(layers) if field.name == "llama.block_count" else 0
            value = field.contents() - fewer if fewer else field.contents()
            writer.add_key_value(field.name, value, field.types[0], field.types[-1])
    for tensor in reader.tensors:
        name = renumbered(tensor.name, layers)
        if name is not None:
            shape, kind = tensor.data.shape, tensor.tensor_type
            writer.add_tensor(name, tensor.data, raw_shape=shape, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return made


def renumbered(name: str, layers: Sequence[int]) -> str | None:
    """A tensor's name once these layers are gone; None if it goes with them."""
    match = re.fullmatch(r"blk\.(\d+)\.(.*)", name)
    if match is None:
        return name
    layer = int(match[1])
    return None if layer in layers else f"blk.{layer - sum(n < layer for n in layers)}.{match[2]}"


class Recorder:
    """The target, the drafters, and one answer at a time."""

    def __init__(self, target: Path, drafters: dict[str, Path], n_tokens: int) -> None:
        self._target = open_context(target)
        self._drafters = {name: open_context(path) for name, path in drafters.items()}
        self._n_tokens = n_tokens

    def record(self, prompt: Prompt) -> Recording:
        """Answer plainly, then ask every proposer at every position."""
        vocabulary = self._target.model.vocabulary
        template = self._target.model.chat_template()
        assert template is not None
        text = template.render(prompt.messages, tools=prompt.tools or None)
        asked = vocabulary.tokenize(text)
        ends = vocabulary.ends
        answer = greedy_answer(self._target, asked, self._n_tokens, ends)
        offers = {
            "suffix": free_offers(Lookup(), asked, answer),
        }
        for name, drafter in self._drafters.items():
            offers[name] = model_offers(drafter, asked, answer, ends)
        reason = "stop" if answer[-1] in ends else "length"
        return Recording(prompt.id, prompt.category, len(asked), reason, offers)


def open_context(path: Path) -> Context:
    # One thread: where others use the cores too, several wait for each other most of the time.
    settings = ContextSettings(context_size=4096, n_outputs=CHUNK, threads=1)
    return Context(Model(path, ModelSettings()), settings)


def greedy_answer(target: Context, asked: list[int], n: int, ends: frozenset[int]) -> list[int]:
    target.clear(0)
    for at in range(0, len(asked), CHUNK):
        rows = target.decode([Span(0, at, asked[at : at + CHUNK], 1)])
    answer = [int(rows[0][-1].argmax())]
    while len(answer) < n and answer[-1] not in ends:
        span = Span(0, len(asked) + len(answer) - 1, answer[-1:], 1)
        answer.append(int(target.decode([span])[0][-1].argmax()))
    return answer


def free_offers(
    proposer: Proposer, asked: Sequence[int], answer: Sequence[int]
) -> tuple[RecordedOffer, ...]:
    """What a proposer without a model drafts after each token of the answer but the last."""
    tokens = list(asked)
    offers = []
    for i, token in enumerate(answer[:-1]):
        tokens.append(token)
        (draft,) = proposer.draft([Ask(0, tokens, DEPTH)])
        offers.append(RecordedOffer(n_equal(draft.tokens, answer[i + 1 :]), draft.confidence))
    return tuple(offers)


def model_offers(
    drafter: Context, asked: list[int], answer: list[int], ends: frozenset[int]
) -> tuple[RecordedOffer, ...]:
    """A draft model's drafts.

    While a draft agrees with the answer, its next token is what the drafter says after the answer
    so far: one reading of the answer tells all of that. Only beyond a wrong token must it draft,
    and every draft that runs into the same wrong token goes on alike.
    """
    guesses, sure = read_answer(drafter, asked, answer)
    tails: dict[int, list[float]] = {}
    # From the end: the cache always holds the answer up to the wrong token.
    for i in reversed(range(len(guesses))):
        if guesses[i] != answer[i + 1]:
            tails[i] = draft_on(drafter, len(asked) + i + 1, guesses[i], ends)
    return tuple(model_offer(i, guesses, sure, tails, answer, ends) for i in range(len(guesses)))


def read_answer(
    drafter: Context, asked: list[int], answer: list[int]
) -> tuple[list[int], list[float]]:
    """After each token of the answer but the last: the drafter's next one, and how sure it is."""
    drafter.clear(0)
    tokens = asked + answer[:-1]
    guesses: list[int] = []
    sure: list[float] = []
    for at in range(0, len(tokens), CHUNK):
        part = tokens[at : at + CHUNK]
        n_logits = min(len(part), max(0, at + len(part) - len(asked)))
        (rows,) = drafter.decode([Span(0, at, part, n_logits)])
        for row in rows:
            guesses.append(int(row.argmax()))
            sure.append(confidence(row, guesses[-1], 0.0))
    return guesses, sure


def draft_on(drafter: Context, length: int, token: int, ends: frozenset[int]) -> list[float]:
    """Confidences of what the drafter says after `length` tokens of the answer and a wrong one."""
    drafter.truncate(0, length)
    sure: list[float] = []
    while len(sure) < DEPTH - 1 and token not in ends:
        row = drafter.decode([Span(0, length + len(sure), [token], 1)])[0][-1]
        token = int(np.argmax(row))
        sure.append(confidence(row, token, 0.0))
    return sure


def model_offer(
    i: int,
    guesses: list[int],
    sure: list[float],
    tails: dict[int, list[float]],
    answer: list[int],
    ends: frozenset[int],
) -> RecordedOffer:
    drafted: list[float] = []
    n_accepted = 0
    for at in range(i, len(guesses)):
        drafted.append(sure[at])
        if at in tails:
            drafted += tails[at]
            break
        n_accepted += 1
        if guesses[at] in ends:
            break
    drafted = drafted[:DEPTH]
    return RecordedOffer(min(n_accepted, len(drafted)), tuple(drafted))


def n_equal(draft: Sequence[int], answer: Sequence[int]) -> int:
    """How much of a draft is right."""
    n = 0
    for guess, token in zip(draft, answer, strict=False):
        if guess != token:
            break
        n += 1
    return n


if __name__ == "__main__":
    main()
