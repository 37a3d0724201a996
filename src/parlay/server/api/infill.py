"""Filling in the middle: a prompt of what stands before and after, for models with marks for that.

Knows the marks by the vocabulary; knows neither HTTP nor templates.
"""

from __future__ import annotations

from collections.abc import Sequence

from parlay.errors import BadRequest
from parlay.llama.vocabulary import Vocabulary


def infill_tokens(
    vocabulary: Vocabulary, before: str, after: str, files: Sequence[tuple[str, str]] = ()
) -> tuple[int, ...]:
    """`files`: others that the model may look at, by name and text."""
    marks = vocabulary.infill
    if marks is None:
        raise BadRequest(
            "this model has no marks for filling in the middle: suffix and /infill need a model"
            " that was trained for it"
        )

    def text(given: str) -> list[int]:
        return vocabulary.tokenize(given, bos=False, special=False)

    found = [vocabulary.bos] if vocabulary.adds_bos else []
    if files and marks.file is None:
        raise BadRequest("this model has no mark between files; leave input_extra out")
    for name, content in files:
        assert marks.file is not None
        found += [marks.file, *text(f"{name}\n{content}\n")]
    found += [marks.before, *text(before), marks.after, *text(after), marks.middle]
    return tuple(found)
