"""Where each token of a streamed answer came from: an extension of OpenAI's chunks, on request.

Knows pieces and the vocabulary. `stream_options.include_origins` asks for it; the page uses it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from parlay.decoding.verdict import Origin
from parlay.engine.sequence import Piece
from parlay.llama.vocabulary import Vocabulary
from parlay.server.api.job import Event


class Origins:
    """The tokens not told yet, by answer: text may be held back, and then so are they."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._held: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)

    def push(self, event: Event, submitted: float, parts: list[dict[str, Any]]) -> None:
        """Take a round, and tell everything with the last part of the chunk, if there is one."""
        ms = round(1e3 * (event.at - submitted), 3)
        held = self._held[event.index]
        held += [self._told(piece, ms) for piece in event.pieces]
        if parts and held:
            parts[-1]["origins"] = list(held)
            held.clear()

    def _told(self, piece: Piece, ms: float) -> dict[str, Any]:
        told = {"text": piece.text, "origin": piece.origin.value, "at_ms": ms}
        if piece.origin is not Origin.PLAIN:
            told["proposer"] = piece.proposer
        if piece.rejected:
            told["rejected"] = self._vocabulary.detokenize(list(piece.rejected))
        return told
