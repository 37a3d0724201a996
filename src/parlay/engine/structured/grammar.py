"""Structured output: grammars become masks over the target's tokens, with rollback for drafts.

Knows llguidance and bytes of tokens; knows neither HTTP nor sampling.
"""

from __future__ import annotations

import functools
import json
import threading
from importlib.util import find_spec
from typing import Any

from parlay.engine.structured.constraint import Alphabet, GrammarConstraint
from parlay.engine.structured.grammar_check import limits_of, one_line, read_apart, read_here
from parlay.errors import BadRequest
from parlay.llama.vocabulary import Vocabulary

MAX_GRAMMAR = 1 << 20
_SMALL = 1 << 13  # characters: from three times as many on, some have ended the process
_N_TEXTS = 4096  # what grammars force, tokenised: names of schemas come again and again
_N_BEGUN = 32  # grammars whose beginning is kept, with all that its copies have found out since
_N_COPIES = 64  # of one beginning: what they find out adds up, and may not for ever
# Nothing between values but what must be there: all of it is forced, and so drafted.
_COMPACT = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}


class Grammars:
    """Compiles grammars for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._begun: dict[str, tuple[Any, int]] = {}  # and copies of it, the latest at the end
        self._lock = threading.Lock()
        # Whether the extra that follows grammars is installed; to look takes long on every request.
        self.available = find_spec("llguidance") is not None

    def json_schema(self, schema: dict[str, Any]) -> str:
        """Any JSON that the schema allows, on one line without spaces."""
        return _compiled("json_schema", json.dumps(compact(schema)))

    def json_object(self) -> str:
        return self.json_schema({"type": "object"})

    def gbnf(self, text: str) -> str:
        return _compiled("gbnf", text)

    def lark(self, text: str) -> str:
        return _compiled("lark", text)

    def constraint(self, grammar: str) -> GrammarConstraint:
        """The state at the beginning of an answer; one for each sequence."""
        return GrammarConstraint(self.matcher(grammar), self.alphabet)

    def matcher(self, grammar: str) -> Any:
        """A grammar's state before the first token. It is a copy: what one answer finds out about
        its grammar, the next one need not."""
        with self._lock:
            begun, n = self._begun.pop(grammar, (None, _N_COPIES))
        if n >= _N_COPIES:
            begun, n = self._begin(grammar), 0
        with self._lock:
            self._begun[grammar] = begun, n + 1
            if len(self._begun) > _N_BEGUN:
                del self._begun[next(iter(self._begun))]
        return begun.deep_copy()

    def _begin(self, grammar: str) -> Any:
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits_of(grammar))
        if matcher.is_error():
            raise BadRequest(f"the grammar cannot be used: {one_line(matcher.get_error())}")
        return matcher

    @functools.cached_property
    def alphabet(self) -> Alphabet:
        """The vocabulary as grammars see it."""
        vocabulary = self._vocabulary
        pieces = [vocabulary.piece(token) for token in range(vocabulary.size)]
        tokenize = functools.lru_cache(_N_TEXTS)(vocabulary.continuation)
        return Alphabet(pieces, tokenize, vocabulary.ends)

    @functools.cached_property
    def _tokenizer(self) -> Any:
        _guidance()
        from llguidance import LLTokenizer

        return LLTokenizer(_Tokens(self._vocabulary), n_vocab=self._vocabulary.size)


def compact(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of JSON without white space between its marks."""
    return {**schema, "x-guidance": _COMPACT}


class _Tokens:
    """A vocabulary as llguidance wants to see it."""

    is_tokenizer_wrapper = True

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        ids = range(vocabulary.size)
        self.special_token_ids = [t for t in ids if not vocabulary.piece(t)]
        special = frozenset(self.special_token_ids)
        self.tokens = [
            vocabulary.text_of(t).encode() if t in special else vocabulary.piece(t) for t in ids
        ]
        self.eos_token_id = vocabulary.eos
        self.bos_token_id = vocabulary.bos if vocabulary.bos >= 0 else None

        self._tokenize = functools.lru_cache(_N_TEXTS)(vocabulary.tokenize)

    def __call__(self, text: str) -> list[int]:
        return self._tokenize(text, bos=False, special=False)


def _guidance() -> None:
    """Say plainly that the extra is missing."""
    try:
        import llguidance  # noqa: F401
    except ImportError:
        raise BadRequest(
            "structured output needs the package llguidance; pip install llguidance"
        ) from None


@functools.lru_cache(maxsize=256)
def _compiled(kind: str, text: str) -> str:
    """A grammar in llguidance's own form, checked."""
    _guidance()
    if len(text) > MAX_GRAMMAR:
        raise BadRequest(f"the grammar has {len(text)} characters, over {MAX_GRAMMAR}")
    return read_here(kind, text) if len(text) <= _SMALL else read_apart(kind, text)
