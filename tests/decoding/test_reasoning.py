"""Thinking and content, split however the text arrives."""

from __future__ import annotations

import pytest

from parlay.decoding.reasoning import Reasoning


def split(text: str, size: int, *, thinking: bool = False) -> tuple[str, str]:
    reasoning = Reasoning(thinking=thinking)
    parts = [reasoning.push(text[i : i + size]) for i in range(0, len(text), size)]
    parts.append(reasoning.finish())
    return "".join(p.reasoning for p in parts), "".join(p.content for p in parts)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(
    ("text", "thinking", "found"),
    [
        ("<think>\nhm\n</think>\n\nyes", False, ("hm", "yes")),
        ("hm</think>yes", True, ("hm", "yes")),
        ("still hm", True, ("still hm", "")),
        ("plain", False, ("", "plain")),
        ("a <think> b", False, ("", "a <think> b")),
        ("<thin air", False, ("", "<thin air")),
        ("<think", False, ("", "<think")),
        ("hm</thi", True, ("hm</thi", "")),
        ("", False, ("", "")),
    ],
)
def test_text_is_split(text: str, thinking: bool, found: tuple[str, str], size: int) -> None:
    reasoning, content = split(text, size, thinking=thinking)
    assert (reasoning.strip("\n"), content) == found
