"""What follows a match; that it is right is held against a search in `test_suffix.py`."""

from __future__ import annotations

from array import array

from parlay.proposers.match import Match
from tests.calls import python_calls


def test_what_all_places_went_on_with_is_taken_at_once() -> None:
    """Places that part after many tokens alike take calls by where they part, not by tokens."""
    alike = list(range(10, 70))
    text = array("i", [1, *alike, 2, 1, *alike, 3, 1, *alike, 2, 1])
    ends = [len(alike) * n + n + n + 1 for n in (2, 1, 0)]
    (tokens, confidence), n_calls = python_calls(lambda: Match(text, 1, ends).follow(62))
    assert tokens == (*alike, 2, 1)
    assert confidence[0] == 3 / (3 + 3 / 1) and confidence[60] == 2 / (3 + 3 / 61)
    assert n_calls < 62 + 30  # one for each confidence
