"""Text to tokens and back: never half a character, and never another vocabulary."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parlay.errors import BadRequest
from parlay.llama.model import Model
from parlay.llama.settings import ModelSettings
from parlay.llama.vocabulary import Detokenizer, Vocabulary, _unbroken
from tests import tiny_models
from tests.tiny_models import MERGES, SPECIAL
from tests.tiny_models import Vocabulary as Written

TEXTS = st.text(
    st.one_of(
        st.characters(codec="utf-8", exclude_characters="<"),
        st.sampled_from("héllo 🙂👩‍👩‍👧終わりñ\u0301 \n\t\x00"),
    ),
    max_size=40,
)
any_text = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vocabulary]:
    path = tiny_models.write_llama(tmp_path_factory.mktemp("vocabulary") / "model.gguf")
    with Model(path, ModelSettings()) as model:
        yield model.vocabulary


# -- there and back ----------------------------------------------------------------------------


@any_text
@given(text=TEXTS)
def test_any_text_survives_the_way_there_and_back(vocabulary: Vocabulary, text: str) -> None:
    assert vocabulary.detokenize(vocabulary.tokenize(text)) == text


@any_text
@given(text=TEXTS)
def test_text_that_comes_token_by_token_equals_the_whole_text(
    vocabulary: Vocabulary, text: str
) -> None:
    detokenizer = Detokenizer(vocabulary)
    pieces = [detokenizer.push(token) for token in vocabulary.tokenize(text)]
    assert "".join(pieces) + detokenizer.flush() == text
    assert detokenizer.flush() == ""


@any_text
@given(tokens=st.lists(st.integers(0, 270), max_size=30))
def test_any_tokens_even_broken_characters_equal_decoding_them_together(
    vocabulary: Vocabulary, tokens: list[int]
) -> None:
    detokenizer = Detokenizer(vocabulary)
    pieces = [detokenizer.push(token) for token in tokens]
    assert "".join(pieces) + detokenizer.flush() == vocabulary.detokenize(tokens)


def test_no_piece_holds_half_a_character(vocabulary: Vocabulary) -> None:
    detokenizer = Detokenizer(vocabulary)
    tokens = vocabulary.tokenize("a🙂終")
    assert len(tokens) == 1 + 4 + 3  # bytes: the tiny vocabulary knows no emoji
    assert [detokenizer.push(t) for t in tokens] == ["a", "", "", "", "🙂", "", "", "終"]


def test_a_character_that_is_never_finished_becomes_one_mark(vocabulary: Vocabulary) -> None:
    detokenizer = Detokenizer(vocabulary)
    first, second, *_ = vocabulary.tokenize("🙂")
    assert (detokenizer.push(first), detokenizer.push(second)) == ("", "")
    assert detokenizer.flush() == "\ufffd"


def test_two_answers_do_not_share_a_half_character(vocabulary: Vocabulary) -> None:
    first = vocabulary.tokenize("🙂")[0]
    one, other = Detokenizer(vocabulary), Detokenizer(vocabulary)
    one.push(first)
    assert other.push(vocabulary.tokenize("a")[0]) == "a"


# -- special tokens ----------------------------------------------------------------------------


def test_special_marks_become_their_own_tokens_only_where_they_may(vocabulary: Vocabulary) -> None:
    end = SPECIAL.index("<|im_end|>")
    assert vocabulary.tokenize("a<|im_end|>")[-1] == end
    plain = vocabulary.tokenize("a<|im_end|>", special=False)
    assert end not in plain
    assert vocabulary.detokenize(plain) == "a<|im_end|>"


def test_control_tokens_have_a_name_but_no_text(vocabulary: Vocabulary) -> None:
    for token, name in enumerate(SPECIAL):
        assert vocabulary.piece(token) == b""
        assert vocabulary.text_of(token) == name


def test_the_end_marks_and_the_beginning_are_known(vocabulary: Vocabulary) -> None:
    assert vocabulary.eos == SPECIAL.index("<|im_end|>")
    assert vocabulary.bos == SPECIAL.index("<|im_start|>")
    assert {SPECIAL.index("<|im_end|>"), SPECIAL.index("<|endoftext|>")} <= vocabulary.ends


def test_the_empty_text_has_no_tokens(vocabulary: Vocabulary) -> None:
    assert vocabulary.tokenize("") == []
    assert vocabulary.detokenize([]) == ""


def test_text_that_is_no_unicode_is_refused_and_not_a_crash(vocabulary: Vocabulary) -> None:
    with pytest.raises(BadRequest, match="not valid text"):
        vocabulary.tokenize("half a pair: \ud83d")


@pytest.mark.parametrize("token", [-1, 271, 1 << 30])
def test_ids_outside_the_vocabulary_are_refused(vocabulary: Vocabulary, token: int) -> None:
    with pytest.raises(BadRequest, match=f"token {token} is not in the vocabulary"):
        vocabulary.piece(token)


def test_a_token_longer_than_any_buffer_is_read_whole(tmp_path: Path) -> None:
    merges = [f"{'a' * 2**n} {'a' * 2**n}" for n in range(10)]
    path = tiny_models.write_llama(tmp_path / "long.gguf", vocab=Written((*MERGES, *merges)))
    with Model(path, ModelSettings()) as model:
        longest = model.vocabulary.size - 1
        assert model.vocabulary.piece(longest) == b"a" * 1024
        assert model.vocabulary.text_of(longest) == "a" * 1024


# -- another vocabulary ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Vocabulary]]:
    folder = tmp_path_factory.mktemp("others")
    written = {
        "same": Written(),
        "longer": tiny_models.OTHER_SIZE,
        "texts": tiny_models.OTHER_TEXTS,
        "far longer": Written((*MERGES, *(f"{chr(97 + i % 26)} {i}" for i in range(140)))),
    }
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                Model(
                    tiny_models.write_llama(folder / f"{name}.gguf", vocab=vocab), ModelSettings()
                )
            ).vocabulary
            for name, vocab in written.items()
        }


def test_equal_vocabularies_differ_in_nothing_and_share_a_fingerprint(
    vocabulary: Vocabulary, others: dict[str, Vocabulary]
) -> None:
    assert vocabulary.first_difference(others["same"]) is None
    assert vocabulary.fingerprint() == others["same"].fingerprint()


def test_a_vocabulary_padded_by_a_few_ids_is_no_difference(
    vocabulary: Vocabulary, others: dict[str, Vocabulary]
) -> None:
    assert vocabulary.first_difference(others["longer"]) is None
    assert others["longer"].first_difference(vocabulary) is None
    assert vocabulary.fingerprint() != others["longer"].fingerprint()


def test_the_first_token_with_another_text_is_named(
    vocabulary: Vocabulary, others: dict[str, Vocabulary]
) -> None:
    found = vocabulary.first_difference(others["texts"])
    token = 3 + 256 + len(MERGES) - 3
    assert found is not None
    assert f"token {token} is" in found
    assert vocabulary.fingerprint() != others["texts"].fingerprint()


def test_sizes_that_no_padding_explains_are_a_difference(
    vocabulary: Vocabulary, others: dict[str, Vocabulary]
) -> None:
    found = vocabulary.first_difference(others["far longer"])
    assert found == f"the target has 271 tokens and the drafter {others['far longer'].size}"


def test_another_type_of_tokenizer_is_a_difference(
    vocabulary: Vocabulary, others: dict[str, Vocabulary], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(others["same"], "kind", vocabulary.kind + 1)
    assert vocabulary.first_difference(others["same"]) == "the tokenizers are of different types"


# -- runs without end --------------------------------------------------------------------------

_LONG_RUN = """
import sys
from parlay.llama.model import Model
from parlay.llama.settings import ModelSettings
with Model(__import__("pathlib").Path(sys.argv[1]), ModelSettings()) as model:
    for run in ("a", "7", "-", " ", "é", "_", "字", "e\\u0301", "A"):
        text = run * 60_000
        assert model.vocabulary.detokenize(model.vocabulary.tokenize(text)) == text
"""


@pytest.mark.parametrize("pre", ["deepseek-llm", "gpt-4o"])
def test_a_run_of_any_length_does_not_end_the_process(
    pre: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their regular expressions call themselves for every character."""
    real = gguf.GGUFWriter.add_tokenizer_pre
    monkeypatch.setattr(gguf.GGUFWriter, "add_tokenizer_pre", lambda self, _: real(self, pre))
    path = tiny_models.write_llama(tmp_path / "model.gguf")
    ran = subprocess.run(
        [sys.executable, "-c", _LONG_RUN, str(path)], capture_output=True, check=False
    )
    assert ran.returncode == 0, ran.stderr.decode()[-500:]


def test_ordinary_text_is_cut_nowhere() -> None:
    prose = "It rains, and the roof (of tin) hums; 37 drops a second. " * 400
    blobs = [
        "0123456789abcdef" * 1000,
        "字\uff0c字\u3002" * 4000,
        "def f(x):\n    return x\n" * 500,
        prose,
    ]
    assert [list(_unbroken(blob)) for blob in blobs] == [[blob] for blob in blobs]
    assert "".join(_unbroken("a" * 50_000)) == "a" * 50_000
    assert max(map(len, _unbroken("a" * 50_000))) <= 8192
