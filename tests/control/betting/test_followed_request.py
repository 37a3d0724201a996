"""What a controller follows of one request."""

from __future__ import annotations

from dataclasses import replace

from parlay.control.betting.followed_request import FollowedRequest
from tests.control.synthetic import view


def test_a_draft_model_lacks_what_came_since_its_last_draft_less_what_it_read_by_itself() -> None:
    request = FollowedRequest(view(n_context=50))
    assert request.n_missing("model") == 51
    request.view = replace(request.view, unread={"model": 12})
    assert request.n_missing("model") == 12
    request.has_read("model", 4, but=1)
    request.view = replace(request.view, n_context=54, unread={"model": 4})
    assert request.n_missing("model") == 1  # what it drafted itself, it need not read again
