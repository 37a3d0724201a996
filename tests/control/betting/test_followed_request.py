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


def test_a_draft_model_that_failed_lacks_the_whole_text() -> None:
    request = FollowedRequest(view(n_context=50))
    request.has_read("model", 4, but=1)
    request.has_forgotten("model")
    assert request.n_missing("model") == 51


def test_a_bet_that_is_made_again_is_learned_from_by_its_own_view_sooner_or_later() -> None:
    first, second, third = view(n_generated=1), view(n_generated=5), view(n_generated=9)
    request = FollowedRequest(first)
    request.weigh(first)
    request.bet_again(second)  # a device computes it while the first one is learned from
    assert request.view is first
    request.observed()
    assert request.view is second
    request.observed()
    request.bet_again(third)  # the second one is known already
    assert request.view is third


def test_who_is_weighed_anew_leaves_nothing_of_a_bet_that_was_to_come() -> None:
    first, second, third = view(n_generated=1), view(n_generated=5), view(n_generated=9)
    request = FollowedRequest(first)
    request.weigh(first)
    request.bet_again(second)
    request.weigh(third)
    request.observed()
    assert request.view is third and request.asked == "none"


def test_what_a_search_would_find_is_weighed_now_and_then_and_seldom_if_it_is_in_vain() -> None:
    request = FollowedRequest(view())
    assert [n for n in range(4, 16) if request.considers(n)] == [4, 8, 12]
    request.woke(16)
    assert [n for n in range(17, 40) if request.considers(n)] == [24, 32]
    request.woke(40)
    assert [n for n in range(41, 80) if request.considers(n)] == [56, 72]
