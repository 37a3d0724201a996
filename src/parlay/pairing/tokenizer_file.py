"""A tokenizer's own file (`tokenizer.json`, or a plain table) against the one in a model file.

Knows JSON shapes; knows nothing of deployments.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parlay.errors import BadRequest
from parlay.pairing.tokenizer import Tokenizer

_MAX_BYTES = 1 << 28


def difference(path: Path, tokenizer: Tokenizer) -> str | None:
    """The first token that is another one in the file; None where all agree."""
    n = 0
    for token, text in _entries(path, _read(path)):
        n += 1
        if not 0 <= token < len(tokenizer.tokens):
            return f"token {token} is not in the model's {len(tokenizer.tokens)}"
        own = tokenizer.tokens[token].decode("utf-8", "replace")
        if own != text:
            return f"token {token} is {text!a} in the file and {own!a} in the model"
    return None if n else "the file lists no tokens"


def _read(path: Path) -> Any:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise BadRequest(f"{path.name} is too large for a tokenizer; name tokenizer.json")
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise BadRequest(f"{path} cannot be read ({error.strerror}); check the path") from None
    except (ValueError, RecursionError):
        raise BadRequest(f"{path.name} is not JSON; name tokenizer.json") from None


def _entries(path: Path, content: Any) -> Iterator[tuple[int, str]]:
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        yield from _table(path, content["model"].get("vocab"))
        for added in content.get("added_tokens") or ():
            yield int(added["id"]), str(added["content"])
    else:
        yield from _table(path, content)


def _table(path: Path, table: Any) -> Iterator[tuple[int, str]]:
    """Texts with their ids, or in order of their ids (each perhaps with a score)."""
    if isinstance(table, dict) and all(isinstance(v, int) for v in table.values()):
        yield from ((token, str(text)) for text, token in table.items())
    elif isinstance(table, list):
        for token, entry in enumerate(table):
            yield token, str(entry[0] if isinstance(entry, list) and entry else entry)
    else:
        raise BadRequest(f"{path.name} holds no table of tokens; name tokenizer.json")
