"""Those who watch: one snapshot for all, the latest for the slow, a hundred at most."""

from __future__ import annotations

import asyncio

import pytest

from parlay.front.errors import Failure
from parlay.front.viewers import MAX_VIEWERS, Viewer, Viewers

TICK_S = 0.01


class Counter:
    """Frames that number themselves."""

    def __init__(self, last: int | None = None) -> None:
        self.n = 0
        self.seen: list[int] = []
        self._last = last

    async def __call__(self, n_viewers: int) -> bytes | None:
        self.n += 1
        self.seen.append(n_viewers)
        if self._last is not None and self.n > self._last:
            return None
        return b"%d;" % self.n


async def read(viewer: Viewer, n: int) -> list[bytes]:
    found = []
    async for frame in viewer.frames():
        found.append(frame)
        if len(found) == n:
            break
    return found


def test_every_tick_is_computed_once_however_many_watch() -> None:
    async def watch() -> Counter:
        counter = Counter()
        viewers = Viewers(counter, TICK_S)
        everybody = [viewers.join() for _ in range(50)]
        found = await asyncio.gather(*(read(viewer, 5) for viewer in everybody))
        assert all(frames == found[0] for frames in found)
        for viewer in everybody:
            viewers.leave(viewer)
        return counter

    counter = asyncio.run(watch())
    assert counter.n <= 7
    assert set(counter.seen) <= {50}


def test_a_slow_viewer_gets_the_latest_frame_and_no_queue() -> None:
    async def watch() -> list[bytes]:
        counter = Counter()
        viewers = Viewers(counter, TICK_S)
        viewer = viewers.join(("history", b"h;"))
        frames = viewer.frames()
        first = await anext(frames)
        while counter.n < 10:  # it does not read for long
            await asyncio.sleep(TICK_S)
        second = await anext(frames)
        viewers.leave(viewer)
        return [first, second]

    first, second = asyncio.run(watch())
    assert first.startswith(b"h;")
    assert second.count(b";") == 1 and int(second[:-1]) > 5


def test_nothing_is_computed_while_nobody_watches() -> None:
    async def watch() -> tuple[int, int]:
        counter = Counter()
        viewers = Viewers(counter, TICK_S)
        await asyncio.sleep(5 * TICK_S)
        before = counter.n
        viewer = viewers.join()
        await read(viewer, 2)
        viewers.leave(viewer)
        await asyncio.sleep(3 * TICK_S)
        n = counter.n
        await asyncio.sleep(5 * TICK_S)
        return before, counter.n - n

    assert asyncio.run(watch()) == (0, 0)


def test_one_more_than_a_hundred_is_refused_until_one_leaves() -> None:
    async def watch() -> None:
        viewers = Viewers(Counter(), TICK_S)
        everybody = [viewers.join() for _ in range(MAX_VIEWERS)]
        with pytest.raises(Failure) as refused:
            viewers.join()
        assert refused.value.status == 503
        viewers.leave(everybody[0])
        viewers.join()
        assert len(viewers) == MAX_VIEWERS

    asyncio.run(watch())


def test_the_streams_end_with_the_server() -> None:
    async def watch() -> list[bytes]:
        viewers = Viewers(Counter(last=2), TICK_S)
        return await asyncio.wait_for(read(viewers.join(), 99), 60)

    assert b"".join(asyncio.run(watch())).endswith(b"2;")


def test_a_snapshot_that_fails_ends_the_streams_and_not_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(_n: int) -> bytes | None:
        raise RuntimeError("no figures")

    async def watch() -> list[bytes]:
        viewers = Viewers(broken, TICK_S)
        return await asyncio.wait_for(read(viewers.join(), 1), 60)

    assert asyncio.run(watch()) == []
    assert "the live figures failed" in caplog.text
