"""A model's vocabulary without its weights: opened in a fraction of a second, however large.

Knows nothing of contexts; the vocabulary is valid inside the `with` block only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from parlay.errors import LoadError
from parlay.llama import library
from parlay.llama.library import C
from parlay.llama.vocabulary import Vocabulary


@contextmanager
def open_vocabulary(path: Path) -> Iterator[Vocabulary]:
    """Load only the tokenizer of a model file."""
    library.start()
    params = C.llama_model_default_params()
    params.vocab_only = True
    library.forget_errors()
    handle: int | None = C.llama_model_load_from_file(os.fsencode(path), params)
    if not handle:
        raise LoadError(f"llama.cpp could not read {path.name}: {library.last_error()}")
    vocabulary = Vocabulary(C.llama_model_get_vocab(handle))
    try:
        yield vocabulary
    finally:
        vocabulary.close()
        C.llama_model_free(handle)
