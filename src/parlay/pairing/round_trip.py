"""The same texts through both tokenizers: are the tokens the same, and do they give the text back?

Loads vocabularies only; knows nothing of verdicts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from parlay.llama.vocabulary import Vocabulary, open_vocabulary
from parlay.pairing.samples import SAMPLES


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """Names of the samples on which something was wrong."""

    n_samples: int
    differing: tuple[str, ...]  # other tokens for the same text
    changed_by_target: tuple[str, ...]  # text that does not come back as it was
    changed_by_drafter: tuple[str, ...]


def round_trip(target: Path, drafter: Path) -> RoundTrip:
    """Tokenise every sample with both."""
    with open_vocabulary(target) as ours, open_vocabulary(drafter) as theirs:
        return RoundTrip(
            n_samples=len(SAMPLES),
            differing=tuple(
                n for n, s in SAMPLES.items() if _tokens(ours, s) != _tokens(theirs, s)
            ),
            changed_by_target=_changed(ours),
            changed_by_drafter=_changed(theirs),
        )


def _tokens(vocabulary: Vocabulary, text: str) -> list[int]:
    return vocabulary.tokenize(text, bos=False)


def _changed(vocabulary: Vocabulary) -> tuple[str, ...]:
    return tuple(name for name, text in SAMPLES.items() if not _comes_back(vocabulary, text))


def _comes_back(vocabulary: Vocabulary, text: str) -> bool:
    # Control marks stand for no text, so they are read as plain text here; a leading space is
    # how sentence-piece tokenizers begin.
    tokens = vocabulary.tokenize(text, bos=False, special=False)
    return vocabulary.detokenize(tokens).removeprefix(" ") == text.removeprefix(" ")
