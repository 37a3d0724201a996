"""Written text on disk: tokens, and the target's distribution at every token it generated.

Knows nothing of models or PyTorch. A corpus is a folder; it only ever grows:

    corpus.json         the header: which target wrote it, its vocabulary, how many tokens are kept
    NAME-00001.npz      a shard, whole or absent; each writer has a NAME of its own

Arrays of a shard, for S texts with T tokens in all, G of them generated, k tokens kept:

    tokens        int32   [T]     every text's prompt and answer, end to end
    offsets       int64   [S+1]   text s is tokens[offsets[s]:offsets[s+1]]
    answer_start  int32   [S]     where the answer begins, counted from the text's own start
    temperature   float32 [S]     how the answer was drawn; 0: greedily
    top_ids       uint16 or int32 [G, k]   likeliest tokens first, at temperature 1
    top_logprobs  float16 [G, k]
    tail_logprob  float16 [G]     log of what all other tokens have together

Row g belongs to the g-th generated token: it is the distribution that token was drawn from, that
is the target's logits after the token before it.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from parlay import store
from parlay.errors import BadRequest

VERSION = 1
HEADER = "corpus.json"
HELD_OUT = 0.02  # share of texts that are never trained on
_ONE_SHARD = 1 << 17  # generated tokens in a shard, unless it is flushed before
_NO_TAIL = -60.0  # log of "nothing", far below what float16 can tell from it

Split = Literal["train", "held_out", "all"]
Ints = NDArray[np.int32]
Halves = NDArray[np.float16]


@dataclass(frozen=True, slots=True)
class CorpusHeader:
    """Which target wrote it; a corpus never mixes two."""

    target: str  # file name, for people
    fingerprint: str  # of the target's file (parlay.store.file_identity)
    n_vocab: int
    top_k: int
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class CorpusText:
    """One prompt with its answer. n is the length of the answer."""

    tokens: Ints
    answer_start: int
    temperature: float
    top_ids: NDArray[Any]  # [n, k]
    top_logprobs: Halves  # [n, k]
    tail_logprob: Halves  # [n]

    @property
    def prompt(self) -> Ints:
        return self.tokens[: self.answer_start]

    @property
    def answer(self) -> Ints:
        return self.tokens[self.answer_start :]

    @property
    def held_out(self) -> bool:
        """Fixed by the prompt alone, so that no prompt is on both sides."""
        return is_held_out(self.prompt)


def is_held_out(prompt: Ints, share: float = HELD_OUT) -> bool:
    """Whether texts with this prompt are kept for testing."""
    raw = np.ascontiguousarray(prompt, np.int32).tobytes()
    return zlib.crc32(raw) < share * 2**32


# -- writing ----------------------------------------------------------------------------------


class CorpusWriter:
    """Adds texts to a corpus; several writers with different names may share a folder."""

    def __init__(self, folder: Path, header: CorpusHeader, name: str = "text") -> None:
        self.folder = folder
        self.name = name
        self.n_generated = 0  # by this writer, since it was opened
        _claim(folder, header)
        self._ids = np.uint16 if header.n_vocab <= 1 << 16 else np.int32
        self.n_shards = _last_number(folder, name)
        self._held: list[CorpusText] = []
        self._n_held = 0

    def add(self, text: CorpusText) -> None:
        """Keep a text; a full shard goes to disk."""
        self._held.append(text)
        self._n_held += len(text.answer)
        self.n_generated += len(text.answer)
        if self._n_held >= _ONE_SHARD:
            self.flush()

    def flush(self) -> None:
        """Write what is held as one shard, at once or not at all."""
        if not self._held:
            return
        self.n_shards += 1
        path = self.folder / f"{self.name}-{self.n_shards:05d}.npz"
        with store.whole(path) as part, part.open("wb") as file:
            arrays: Any = _arrays(self._held, self._ids)  # numpy's own types want a bool here
            np.savez(file, **arrays)
        self._held, self._n_held = [], 0


def _claim(folder: Path, header: CorpusHeader) -> None:
    """Write the header, or check that it is ours."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / HEADER
    if path.exists():
        known = read_header(folder)
        if known != header:
            raise BadRequest(
                f"{folder} holds text of another target ({known.target}) or of another kind;"
                " give a folder of its own"
            )
        return
    with store.whole(path) as part:
        part.write_text(json.dumps(asdict(header)), "utf-8")


def _last_number(folder: Path, name: str) -> int:
    numbers = [path.stem.rpartition("-")[2] for path in folder.glob(f"{name}-*.npz")]
    return max((int(number) for number in numbers if number.isdigit()), default=0)


def _arrays(
    texts: list[CorpusText], ids: type[np.uint16] | type[np.int32]
) -> dict[str, NDArray[Any]]:
    lengths = [len(text.tokens) for text in texts]
    return {
        "tokens": np.concatenate([text.tokens for text in texts]).astype(np.int32),
        "offsets": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        "answer_start": np.array([text.answer_start for text in texts], np.int32),
        "temperature": np.array([text.temperature for text in texts], np.float32),
        "top_ids": np.concatenate([text.top_ids for text in texts]).astype(ids),
        "top_logprobs": np.concatenate([text.top_logprobs for text in texts]).astype(np.float16),
        "tail_logprob": np.maximum(
            np.concatenate([text.tail_logprob for text in texts]), _NO_TAIL
        ).astype(np.float16),
    }


# -- reading ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shard:
    """One file's arrays, as the module's first lines describe them."""

    tokens: Ints
    offsets: NDArray[np.int64]
    answer_start: Ints
    temperature: NDArray[np.float32]
    top_ids: NDArray[Any]
    top_logprobs: Halves
    tail_logprob: Halves

    @property
    def n_generated(self) -> int:
        return len(self.tail_logprob)

    def texts(self) -> Iterator[CorpusText]:
        """Views of every text, in the order they were written."""
        row = 0
        for s, start in enumerate(self.answer_start):
            tokens = self.tokens[self.offsets[s] : self.offsets[s + 1]]
            end = row + len(tokens) - int(start)
            yield CorpusText(
                tokens,
                int(start),
                float(self.temperature[s]),
                self.top_ids[row:end],
                self.top_logprobs[row:end],
                self.tail_logprob[row:end],
            )
            row = end


class Corpus:
    """What has been written so far. Shards are read when they are asked for, one at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.header = read_header(folder)

    @property
    def paths(self) -> list[Path]:
        """The shards that are there now."""
        return sorted(self.folder.glob("*.npz"))

    def shards(self) -> Iterator[Shard]:
        """Every shard, loaded."""
        for path in self.paths:
            yield load_shard(path)

    def texts(self, split: Split = "all") -> Iterator[CorpusText]:
        """Every text of a split."""
        for shard in self.shards():
            for text in shard.texts():
                if split == "all" or text.held_out == (split == "held_out"):
                    yield text

    @property
    def n_generated(self) -> int:
        """Tokens the target has written."""
        return sum(len(_column(path, "tail_logprob")) for path in self.paths)

    @property
    def n_tokens(self) -> int:
        """Tokens in all, prompts included."""
        return sum(int(_column(path, "offsets")[-1]) for path in self.paths)


def read_header(folder: Path) -> CorpusHeader:
    """A corpus's header, or a line that says why there is none."""
    path = folder / HEADER
    try:
        header = CorpusHeader(**json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        raise BadRequest(f"{folder} holds no written text; parlay train writes it") from None
    except (OSError, ValueError, TypeError) as error:
        raise BadRequest(f"{path} cannot be read ({error}); remove the folder") from None
    if header.version != VERSION:
        raise BadRequest(f"{folder} has version {header.version}, this Parlay reads {VERSION}")
    return header


def load_shard(path: Path) -> Shard:
    """All arrays of one file."""
    with _opened(path) as found:
        return Shard(**{name: found[name] for name in Shard.__slots__})


def _column(path: Path, name: str) -> NDArray[Any]:
    """One array of one file; the others stay on disk."""
    with _opened(path) as found:
        column: NDArray[Any] = found[name]
    return column


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with np.load(path, allow_pickle=False) as found:
            yield found
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise BadRequest(f"{path} is damaged ({error}); remove it, the rest stays") from None
