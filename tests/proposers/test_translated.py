"""Drafts translated through text: lossless by construction, so what counts is that they agree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest

from parlay.decoding.draft import Draft
from parlay.llama.context import Context
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.parlay import Parlay
from parlay.proposers.draft_model import DraftModel
from parlay.proposers.drafting import DraftLimits
from parlay.proposers.proposer import Ask, Proposer, Worth
from parlay.proposers.translated import Encoder, TranslatedProposer, _whole
from tests import tiny_models
from tests.scripted import LaxConstraint

END = 0


class Words:
    """A vocabulary of given pieces, longest first; token 0 ends a text."""

    def __init__(self, *pieces: str, prefix: str = "") -> None:
        self.pieces = ("", *pieces, "\n")
        self.ends = frozenset({END})
        self.eos = END
        self._prefix = prefix

    def tokenize(self, text: str, *, bos: bool | None = None, special: bool = True) -> list[int]:
        found, text = [], self._prefix + text
        by_length = sorted(range(1, len(self.pieces)), key=lambda i: -len(self.pieces[i]))
        while text:
            token = next(i for i in by_length if text.startswith(self.pieces[i]))
            found.append(token)
            text = text[len(self.pieces[token]) :]
        return found

    def piece(self, token: int) -> bytes:
        return self.pieces[token].encode()

    def text_of(self, token: int) -> str:
        return self.pieces[token] or "<end>"


class Script(Proposer):
    """A drafter that drafts what it is told, in its own tokens."""

    name = "script"

    def __init__(self, *tokens: int) -> None:
        self.tokens = tokens
        self.asked: list[Ask] = []
        self.forgotten: list[int] = []
        self.finished: list[Sequence[int]] = []

    def draft(self, asks: Sequence[Ask], worth: Worth | None = None) -> list[Draft]:
        self.asked += asks
        return [
            Draft(self.tokens[: a.window], self.name, (0.5,) * len(self.tokens[: a.window]))
            for a in asks
        ]

    def open(self, seq_id: int, tokens: Sequence[int], n_kept: int, owner: str = "") -> None:
        self.forgotten.append(seq_id)

    def finish(self, seq_id: int, tokens: Sequence[int]) -> None:
        self.finished.append(tokens)

    def cut(self, seq_id: int, keep: int, gone: int) -> None:
        raise AssertionError("positions mean nothing in another vocabulary")

    def close(self) -> None:
        self.asked.clear()


TARGET = Words("the", " ", "cat", "s", "a", "t", "c")
OWN = Words(" c", "at", "the", "s", " ", "c", "a", "t")


def draft(*tokens: int, window: int = 8, said: str = "the") -> tuple[str, ...]:
    proposer = TranslatedProposer(Script(*tokens), TARGET, OWN)
    (found,) = proposer.draft([Ask(3, TARGET.tokenize(said), window)])
    return tuple(TARGET.text_of(token) for token in found.tokens)


def own(text: str) -> list[int]:
    return OWN.tokenize(text)


def test_a_draft_comes_back_in_the_target_s_tokens() -> None:
    # The last token only shows where the one before it ends.
    assert draft(*own(" cat"), *own(" ")) == (" ", "cat")


def test_a_token_that_may_still_grow_is_held_back() -> None:
    assert draft(*own(" c"), *own("a")) == (" ", "c")
    assert draft(*own(" cat"), *own("s")) == (" ", "cat")
    # " c" alone: the target's "cat" begins inside it, and "c" would be wrong if "at" follows.
    assert draft(*own(" c"), *own("at")) == (" ",)


def test_an_end_of_text_is_translated_and_nothing_is_held_back() -> None:
    assert draft(*own(" cat"), END) == (" ", "cat", "<end>")
    assert draft(END) == ("<end>",)


def test_the_window_is_the_target_s() -> None:
    assert draft(*own(" cat cat cat"), window=3) == (" ", "cat", " ")


def test_the_drafter_is_asked_for_one_more_and_greedily() -> None:
    script = Script(*own(" cat "))
    TranslatedProposer(script, TARGET, OWN).draft([Ask(0, TARGET.tokenize("the"), 4)])
    (ask,) = script.asked
    assert (list(ask.tokens), ask.window, ask.sampling.greedy) == (own("the"), 5, True)


def test_the_drafter_is_not_held_to_a_grammar_in_the_target_s_tokens() -> None:
    drafter = Script(*own(" cat"), *own(" "))
    grammar = LaxConstraint()
    ask = Ask(0, TARGET.tokenize("the"), 4, constraint=grammar)
    TranslatedProposer(drafter, TARGET, OWN).draft([ask])
    assert drafter.asked[0].constraint is None


def test_without_a_window_nothing_is_drafted() -> None:
    assert draft(*own(" cat "), window=0) == ()


def test_confidence_has_one_value_per_token() -> None:
    proposer = TranslatedProposer(Script(*own(" cat"), *own(" c")), TARGET, OWN)
    (found,) = proposer.draft([Ask(0, TARGET.tokenize("the"), 8)])
    assert len(found.confidence) == len(found.tokens)


def test_text_that_grows_is_encoded_again_only_at_its_end() -> None:
    script = Script(*own("s "))
    proposer = TranslatedProposer(script, TARGET, OWN)
    tokens = TARGET.tokenize("the" + " cats" * 100)
    for _ in range(3):
        proposer.draft([Ask(0, list(tokens), 4)])
        assert b"".join(OWN.piece(t) for t in script.asked[-1].tokens) == b"".join(
            TARGET.piece(t) for t in tokens
        )
        tokens += TARGET.tokenize(" cats" * 30)
    assert script.forgotten == []


def test_the_drafter_looks_again_where_a_cut_moved() -> None:
    script = Script(*own("s "))
    proposer = TranslatedProposer(script, TARGET, OWN)
    proposer.draft([Ask(0, TARGET.tokenize("the "), 4)])
    assert list(script.asked[-1].tokens) == own("the ")
    proposer.draft([Ask(0, TARGET.tokenize("the cat"), 4)])
    assert list(script.asked[-1].tokens) == own("the cat")  # " " became part of " c"
    assert script.forgotten == [0]


def test_another_sequence_in_the_slot_starts_over() -> None:
    script = Script(*own("s "))
    proposer = TranslatedProposer(script, TARGET, OWN)
    proposer.draft([Ask(0, TARGET.tokenize("the cat"), 4)])
    proposer.draft([Ask(0, TARGET.tokenize("cats"), 4)])
    assert list(script.asked[-1].tokens) == own("cats")
    proposer.cut(0, 1, 2)
    assert script.forgotten == [0, 0]
    proposer.finish(0, [])
    assert script.finished == [[]]
    proposer.close()
    assert script.asked == []


def test_a_vocabulary_that_adds_a_space_does_not_add_one_in_the_middle() -> None:
    spaced = Words(" a", " ", "a", "b", prefix=" ")
    encoder = Encoder(spaced)
    assert encoder.encode("a", first=True) == [1]
    # Its "\n" alone is cut as " " and "\n": that much is taken off again.
    assert [spaced.text_of(t) for t in encoder.encode("ab", first=False)] == ["a", "b"]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"ab", "ab"),
        ("é".encode()[:1], ""),
        ("a€".encode()[:-1], "a"),
        ("👍".encode()[:3], ""),
        ("👍".encode(), "👍"),
        (b"a\xff", "a"),
        (b"\x80\x80\x80\x80\x80", "�" * 5),
        (b"", ""),
    ],
)
def test_half_a_character_waits_for_the_rest(raw: bytes, text: str) -> None:
    assert _whole(raw) == text


# -- on a model -------------------------------------------------------------------------------


def _ascii_only(path: Path) -> Path:
    """Silence every token that is not ASCII, so that the text survives translation."""
    reader = gguf.GGUFReader(path, "r+")
    tokens = tiny_models.VOCABULARY.tokens
    (output,) = (t for t in reader.tensors if t.name == "output.weight")
    for i, token in enumerate(tokens):
        if not all(33 <= ord(letter) < 127 or letter == "Ġ" for letter in token):
            output.data[i] = 0
    reader.data.flush()
    return path


def _renumbered(src: Path, dst: Path, order: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Path:
    """The same model with its tokens in another order."""
    vocab = tiny_models.VOCABULARY
    reader = gguf.GGUFReader(src)
    writer = gguf.GGUFWriter(dst, "llama")
    for key, entry in reader.fields.items():
        if key.startswith("llama."):
            writer.add_key_value(key, entry.contents(), entry.types[0])
    vocab.write(writer)
    writer.add_token_list([vocab.tokens[i] for i in order])
    writer.add_token_types([vocab.types[i] for i in order])
    for tensor in reader.tensors:
        ends = tensor.name in ("token_embd.weight", "output.weight")
        writer.add_tensor(tensor.name, tensor.data[order] if ends else tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return dst


@pytest.fixture(scope="module")
def foreign_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    folder = tmp_path_factory.mktemp("foreign")
    target = _ascii_only(tiny_models.write_llama(folder / "target.gguf"))
    n = len(tiny_models.VOCABULARY.tokens)
    order = np.arange(n)
    order[3:] = order[3:][::-1]
    yield target, _renumbered(target, folder / "foreign.gguf", order)


@pytest.mark.filterwarnings("ignore")  # gguf says that a key is written again
def test_a_drafter_of_another_vocabulary_agrees_with_itself(
    foreign_pair: tuple[Path, Path],
) -> None:
    target, foreign = foreign_pair
    with Parlay(target, draft="none", threads=1, context_size=512) as parlay:
        prompt = parlay.tokens("tell me", raw=True)
        answer = parlay.generate("tell me", raw=True, temperature=0, max_tokens=60)
        ours = parlay.engine.model.vocabulary
        with Model(foreign, ModelSettings()) as model:
            assert ours.first_difference(model.vocabulary) is not None
            context = Context(model, ContextSettings(512, threads=1))
            own = model.vocabulary
            drafter = DraftModel(context, DraftLimits(own.ends, own.size, 512))
            accepted, drafted = _acceptance(
                TranslatedProposer(drafter, ours, own), prompt, list(answer.tokens)
            )
            context.close()
    assert drafted > 100
    assert accepted / drafted > 0.8


def _acceptance(
    proposer: TranslatedProposer, prompt: list[int], answer: list[int]
) -> tuple[int, int]:
    """Ask for a draft after every token of a known answer."""
    accepted = drafted = 0
    for n in range(len(answer) - 8):
        (found,) = proposer.draft([Ask(0, prompt + answer[:n], 4)])
        drafted += len(found.tokens)
        for ours, theirs in zip(answer[n:], found.tokens, strict=False):
            if ours != theirs:
                break
            accepted += 1
    return accepted, drafted
