"""Bounds and forms of what others tell: counts, seconds, labels, one line of text.

Knows no engine and no file; whatever is read from outside passes through these.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

MAX_LABEL: Final = 96
MAX_REASON: Final = 200
MAX_COUNT: Final = 10_000_000
MAX_SECONDS: Final = 1_000_000.0
MAX_POSITIONS: Final = 128


def _check_printable(text: str) -> str:
    if not text.isprintable():
        raise PydanticCustomError("label", "write it without control characters")
    return text


Printable = AfterValidator(_check_printable)
Label = Annotated[str, Field(min_length=1, max_length=MAX_LABEL), Printable]
Reason = Annotated[str, Field(max_length=MAX_REASON), Printable]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Strict(BaseModel):
    """Data that admits nothing it does not know."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


def one_line(text: str, limit: int = MAX_REASON) -> str:
    """Text from outside, made safe for a record."""
    shown = "".join(c if c.isprintable() else " " for c in text[: limit * 2])
    shown = " ".join(shown.split())
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."
