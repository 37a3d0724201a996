"""When a server goes and comes back, over any order of events."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from parlay.front.remote.health import Health, HealthLimits

LIMITS = HealthLimits(eject_after=3, eject_s=1.0, max_eject_s=8.0)


def up() -> Health:
    health = Health(LIMITS)
    health.checked(0.0, None)
    assert health.takes
    return health


def test_nothing_is_asked_before_its_first_check() -> None:
    assert not Health(LIMITS).takes


def test_a_failed_check_ejects_at_once() -> None:
    health = up()
    health.checked(1.0, "http_503")
    assert (health.state, health.reason, health.last_resort) == ("out", "http_503", False)


def test_failed_requests_eject_after_three_in_a_row_though_checks_pass() -> None:
    health = up()
    for _ in range(2):
        health.failed(1.0, "http_500")
    health.answered(1.0)
    for _ in range(2):
        health.failed(1.0, "http_500")
    assert health.takes
    health.failed(1.0, "http_500")
    assert (health.state, health.last_resort) == ("out", True)


def test_nobody_listening_ejects_at_once() -> None:
    health = up()
    health.failed(1.0, "refused", gone=True)
    assert not health.takes


def test_the_way_back_takes_twice_as_long_each_time_up_to_the_limit() -> None:
    health, now, waits = up(), 0.0, []
    for _ in range(6):
        health.failed(now, "refused", gone=True)
        began = now
        while not health.takes:
            now += 0.25
            health.checked(now, None)
        waits.append(now - began)
    assert waits == [1, 2, 4, 8, 8, 8]


def test_one_failure_after_the_return_is_enough() -> None:
    health = up()
    health.failed(0.0, "refused", gone=True)
    health.checked(1.0, None)
    health.failed(1.5, "http_500")
    assert not health.takes


def test_a_long_good_time_is_forgiving() -> None:
    health = up()
    for now in (0.0, 1.0, 3.0):
        health.failed(now, "refused", gone=True)
        health.checked(now + 8.0, None)
    health.answered(11.0 + LIMITS.max_eject_s)
    health.failed(30.0, "refused", gone=True)
    assert not health.due(30.9) and health.due(31.0)


EVENTS = st.lists(
    st.tuples(
        st.floats(0, 5),
        st.sampled_from(["pass", "fail", "answered", "failed", "gone"]),
    ),
    max_size=60,
)


@given(EVENTS)
def test_no_order_of_events_leaves_a_server_out_for_ever_or_in_while_dead(
    events: list[tuple[float, str]],
) -> None:
    health, now = Health(LIMITS), 0.0
    for step, event in events:
        now += step
        before = health.state
        if event in ("pass", "fail"):
            health.checked(now, None if event == "pass" else "http_503")
        elif event == "answered":
            health.answered(now)
        else:
            health.failed(now, "x", gone=event == "gone")
        if event in ("fail", "gone"):
            assert not health.takes
        if before == "out" and health.state == "up":
            assert event == "pass"
    now += LIMITS.max_eject_s
    health.checked(now, None)
    assert health.takes
