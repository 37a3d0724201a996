"""Paths, addresses and tags are found and removed; figures and names of hardware are not."""

from __future__ import annotations

import pytest

from parlay.bench.result import leaks, scrub

GIVEAWAYS = [
    "/home/somebody/models/a.gguf",
    "cannot open '/Users/somebody/x'",
    "C:\\Users\\somebody",
    "D:/models/x",
    "\\\\server\\share",
    "~/models/x.gguf",
    "http://10.0.0.3:8080",
    "10.0.0.3:8080 refused",
    "connect to localhost failed",
    "mail me: some.body@example.org",
    "<script>alert(1)</script>",
    "</td>",
]
HARMLESS = [
    "NVIDIA GeForce RTX 4090",
    "AMD Ryzen 9 7950X 16-Core",
    "Linux 6.8 x86_64",
    "535.104.05",
    "3 of 5 runs/prompts at 2.5 tok/s",
    "a < b and c > d",
    "Qwen2.5-3B-Instruct-Q8_0",
    "HTTP 500: out of memory",
]


@pytest.mark.parametrize("text", GIVEAWAYS)
def test_giveaways_are_found_and_removed(text: str) -> None:
    assert list(leaks(text)) and not list(leaks(scrub(text)))
    assert "somebody" not in scrub(text)


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_texts_stay_as_they_are(text: str) -> None:
    assert not list(leaks(text))
    assert scrub(text) == text


def test_whole_records_are_searched_keys_included() -> None:
    data = {"a": [{"b": "fine"}, {"c": "/home/x/y"}], "/root/k/": 1}
    assert {place for place, _ in leaks(data)} == {".a.1.c", "./root/k/"}
    assert scrub({"a": ["see /home/x/y now", 3, None]}) == {"a": ["see (removed) now", 3, None]}
