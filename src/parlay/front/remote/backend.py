"""A backend of remote servers: one is chosen, asked, exchanged while it can be, and read.

Before the first words another server may take over; after them, never. Where some pools speculate
and others do not, traffic follows measured time. Knows asks and pools; knows no clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from time import perf_counter
from typing import Any

from msgspec import structs

from parlay.ask import (
    Accepted,
    Ask,
    Done,
    End,
    Facts,
    Refused,
    Reply,
    SoFar,
    State,
    Token,
)
from parlay.deployment import Deployment
from parlay.errors import ParlayError
from parlay.front import errors
from parlay.front.errors import Failure
from parlay.front.remote import request as asking
from parlay.front.remote.observed import Observed, PoolDecision, figures_of, ms
from parlay.front.remote.pools import Pools
from parlay.front.remote.recent import Answered, Recent
from parlay.front.remote.relay import Attempt, Chunk, ServerFailed
from parlay.front.remote.request import unsupported
from parlay.front.remote.server import Server
from parlay.front.remote.spoken import CALLS, THINKING, Speaker
from parlay.front.remote.tally import Tally, together
from parlay.front.remote.timing import RouteTiming
from parlay.reading import answers

_SO_FAR_S = 1.0
_BROKEN = Failure(502, "the server stopped in the midst of its answer", "server_error", "upstream")
_NOBODY = Failure(
    502, "no server could answer this request; try again", "server_error", "upstream", None, 1
)
_CLOSED = errors.unavailable("the server is shutting down", "shutting_down")


class RemoteBackend:
    """One model behind several addresses."""

    def __init__(self, deployment: Deployment, alert: Callable[[str, str | None], None]) -> None:
        self.pools = Pools(deployment)
        self.routes: dict[str, RouteTiming] = {}
        self.decisions: Counter[tuple[str, bool, str]] = Counter()
        self.n_retries = 0
        self._deployment = deployment
        self._alert = alert
        self._chars, self._tokens = 400.0, 100.0  # of prompts; until measured four a token
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._over = asyncio.Event()  # those who still wait are given up
        self._recent = Recent()

    async def start(self) -> None:
        """Look at everyone, now and from now on."""
        await self._look()
        self._later(self._keep_looking())

    def apply(self, deployment: Deployment) -> None:
        """Pools and limits of a deployment that was read again."""
        gone = self.pools.apply(deployment)
        self._deployment = deployment
        for server in gone:
            self._later(_close_when_idle(server))

    # -- health ---------------------------------------------------------------

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(self._deployment.gateway.health_interval_s)
            await self._look()

    async def _look(self) -> None:
        """Once at everyone for whom it could make a difference."""
        now, at_once = time.monotonic(), asyncio.Semaphore(64)

        async def check(server: Server) -> None:
            async with at_once:
                await server.check()

        await asyncio.gather(*(check(each) for each in self.pools.all if each.health.due(now)))
        self.pools.dispatch()
        out = [each for each in self.pools.all if not each.health.takes]
        first = f" (first: {out[0].pool.name}, {out[0].health.reason})" if out else ""
        n = len(self.pools.all)
        text = f"{len(out)} of {n} servers take no requests{first}" if out else None
        self._alert("upstream_out", text)
        up = {each.pool.name for each in self.pools.all if each.health.takes}
        down = [pool.name for pool in self._deployment.upstreams if pool.name not in up]
        self._alert("pool_down", f"no server of {', '.join(down)} takes requests" if down else None)

    def _failed(self, server: Server, error: ServerFailed) -> None:
        """Remember it, and look at once whether it is still well."""
        if error.reason == "http_429":
            return  # busy is not broken
        server.failed(error.reason, gone=error.gone)

        async def look() -> None:
            if server.health.due(time.monotonic()):
                await server.check()
            self.pools.dispatch()

        self._later(look())

    # -- one request ----------------------------------------------------------

    async def answer(self, ask: Ask, *, whole: bool = False) -> AsyncGenerator[list[Reply], None]:
        """`whole`: nothing goes to the client before the end, so until then another server can
        take over."""
        try:
            replies = self._answer(ask, whole)
            async with contextlib.aclosing(replies):
                while (batch := await self._unless_over(replies)) is not None:
                    yield batch
        except ServerFailed as error:
            yield [_refused(error.answer or _BROKEN)]
        except (Failure, ParlayError) as error:
            yield [_refused(errors.of(error))]

    async def _unless_over(self, replies: AsyncGenerator[list[Reply], None]) -> list[Reply] | None:
        """The next batch, unless all are given up meanwhile."""
        coming = asyncio.ensure_future(anext(replies, None))
        over = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait({coming, over}, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                raise _CLOSED
            return coming.result()
        finally:
            for task in (coming, over):
                task.cancel()
            await asyncio.gather(coming, over, return_exceptions=True)

    async def _answer(self, ask: Ask, whole: bool) -> AsyncGenerator[list[Reply], None]:
        if self._closed:
            raise _CLOSED
        ask = self._limited(ask)
        enabled, policy = asking.wish_of(ask.speculation)
        n_chars = sum(map(len, asking.texts_of(ask)))
        n_prompt = max(1, round(n_chars * self._tokens / self._chars))
        rule = asking.rule_of(ask, policy, self._deployment, n_prompt)
        plain = rule.reason.value if rule.policy == "plain" and not rule.auto else None
        decision = self._decide(rule.name, enabled, plain)
        self.decisions[rule.name, decision.speculative, decision.why] += 1
        tried: list[Server] = []
        arrived, held = perf_counter(), list[Reply]()
        while True:
            seen = Observed(ask, rule.name, decision, arrived)
            attempt, took = await self._begin(ask, seen, tried), None
            try:
                async for replies in self._relay(attempt, seen):
                    if whole:
                        held += replies
                    else:
                        yield replies
                self._learn(attempt.server, seen, n_chars)
                took = perf_counter() - arrived
                break
            except ServerFailed as error:
                self._failed(attempt.server, error)
                tried.append(attempt.server)
                if not whole or len(tried) > self._deployment.gateway.retries:
                    raise
                held.clear()
            finally:
                self.pools.release(attempt.server, took)
                self._later(attempt.close())
        if whole:
            yield held

    def _limited(self, ask: Ask) -> Ask:
        """The deployment's own limits and defaults, where it sets them."""
        server = self._deployment.server
        most, given = server.max_answer_tokens, ask.max_tokens
        if most is not None:
            ask = structs.replace(ask, max_tokens=most if given is None else min(given, most))
        if ask.samplers.temperature is None and "default_temperature" in server.model_fields_set:
            samplers = structs.replace(ask.samplers, temperature=server.default_temperature)
            ask = structs.replace(ask, samplers=samplers)
        return ask

    def _decide(self, route: str, enabled: bool | None, plain: str | None) -> PoolDecision:
        if not self.pools.both():
            return PoolDecision(self.pools.all[0].pool.speculative, "only")
        if enabled is not None:
            return PoolDecision(enabled, "request", None if enabled else "request")
        if plain is not None:
            return PoolDecision(False, "policy", plain)
        for kind in (True, False):
            if not self.pools.able(kind):
                return PoolDecision(not kind, "unavailable")
        choice = self._timing(route).choose()
        unprofitable = choice.why == "faster" and not choice.speculate
        return PoolDecision(choice.speculate, choice.why, "unprofitable" if unprofitable else None)

    def _timing(self, route: str) -> RouteTiming:
        if route not in self.routes:
            self.routes[route] = RouteTiming()
        return self.routes[route]

    async def _begin(self, ask: Ask, seen: Observed, tried: list[Server]) -> Attempt:
        """Ask servers until one begins to answer; none that is in `tried` already."""
        settings, failed = self._deployment.gateway, None
        while True:
            server = await self._lease(seen.decision.speculative, tried, failed)
            self.n_retries += failed is not None or bool(tried)
            seen.asked = perf_counter()
            body = asking.body_of(ask, server.engine, server.model)
            attempt = Attempt(
                server,
                asking.path_of(ask),
                body,
                settings.stall_timeout_s,
                int(settings.max_answer_mb * 1e6),
            )
            try:
                await asyncio.wait_for(attempt.begin(), max(0.0, seen.deadline - perf_counter()))
            except BaseException as error:
                self.pools.release(server)
                self._later(attempt.close())
                if isinstance(error, asyncio.TimeoutError):
                    raise errors.timed_out(ask.time_limit_s or 0.0) from None
                if not isinstance(error, ServerFailed):
                    raise
                failed = error
                self._failed(server, error)
                tried.append(server)
                seen.n_tries += 1
                if seen.n_tries > settings.retries:
                    raise failed.answer or _NOBODY from None
            else:
                seen.pool = server.pool.name
                if server.pool.speculative != seen.decision.speculative:
                    seen.decision = PoolDecision(server.pool.speculative, "unavailable")
                return attempt

    async def _lease(
        self, speculative: bool, tried: list[Server], failed: ServerFailed | None
    ) -> Server:
        """A server that has not failed this request; one that merely hung up may try again."""
        if failed is not None and failed.reason == "cut" and not self.pools.fresh(tried):
            tried.clear()
        try:
            return await self.pools.lease((speculative, not speculative), tried)
        except Failure as refused:
            if failed is not None and refused.code == "no_upstream":
                raise failed.answer or _NOBODY from None
            raise

    async def _relay(self, attempt: Attempt, seen: Observed) -> AsyncGenerator[list[Reply], None]:
        ask = seen.ask
        n_choices = ask.n * len(ask.prompts or (0,))
        speakers = [Speaker(i) for i in range(n_choices)]
        yield [
            Accepted(
                n_prompt=(0,) * n_choices,  # it is told at the end
                seed=ask.seed or 0,
                temperature=ask.samplers.temperature or 0.0,
                mode="faithful",
                policy=seen.rule,
                functions=ask.tools,
                headers={
                    "X-Parlay-Pool": seen.pool,
                    "X-Parlay-Speculative": str(seen.decision.speculative).lower(),
                    "X-Parlay-Reason": seen.decision.why,
                },
            )
        ]
        told = perf_counter()
        async for chunks in self._until(attempt, seen, speakers):
            replies: list[Reply] = []
            for chunk in chunks:
                replies += self._read(chunk, seen, speakers)
            if perf_counter() - told > _SO_FAR_S:
                told = perf_counter()
                replies.append(SoFar(figures_of(seen, self._timing(seen.rule))))
            if replies:
                yield replies
        figures = figures_of(seen, self._timing(seen.rule))
        yield [
            *(End(i, s.reason or "length", figures) for i, s in enumerate(speakers)),
            Done(figures),
        ]

    async def _until(
        self, attempt: Attempt, seen: Observed, speakers: Sequence[Speaker]
    ) -> AsyncGenerator[list[Chunk], None]:
        """What comes, up to the end of every choice, or to the time limit: what is there by then is
        still worth having."""
        yield attempt.first
        rest = attempt.rest()
        while not attempt.done:
            coming = anext(rest, None)
            try:
                left = seen.deadline - perf_counter()
                # A timer for every chunk would cost more than the chunk.
                chunks = await (coming if left > 60 else asyncio.wait_for(coming, max(0.0, left)))
            except asyncio.TimeoutError:
                return
            except ServerFailed as error:
                if error.reason == "cut" and all(speaker.reason for speaker in speakers):
                    return  # only the farewell is missing
                raise
            if chunks is None:
                if all(speaker.reason for speaker in speakers):
                    return
                raise ServerFailed("cut")
            yield chunks

    def _read(self, chunk: Chunk, seen: Observed, speakers: Sequence[Speaker]) -> list[Reply]:
        event, now = answers.event_of(chunk), perf_counter()
        if event.text:
            seen.first, seen.last = seen.first or now, now
            seen.n_chunks += 1
            self._recent.word(seen.rule)
        seen.said = seen.said.then(event)
        found: list[Reply] = []
        for choice in map(answers.mapping, answers.listed(chunk.get("choices"))):
            index = answers.count(choice.get("index")) or 0
            if index < len(speakers):
                pieces = speakers[index].push(choice, round(1e3 * (now - seen.arrived), 3))
                found += [] if pieces is None else [pieces]
        return found

    def _learn(self, server: Server, seen: Observed, n_chars: int) -> None:
        """It came to a good end."""
        server.answered()
        server.told.add_answer(seen.n_generated, seen.said.speculation)
        if seen.said.n_prompt and n_chars:
            self._chars = 0.99 * self._chars + n_chars
            self._tokens = 0.99 * self._tokens + seen.said.n_prompt
        seconds, tokens = seen.decoding()
        timing = self._timing(seen.rule)
        timing.observe(server.pool.speculative, seconds, tokens)
        plain, n = timing.sides[False].s_per_token, seen.n_generated
        self._recent.word(seen.rule, n - seen.n_chunks)
        plain_s = None if plain is None else plain * tokens
        told, fallback = seen.said.speculation, seen.decision.fallback
        self._recent.take(seen.rule, Answered(n, told, fallback, seconds, plain_s))

    # -- everything else ------------------------------------------------------

    @property
    def facts(self) -> Facts:
        named = (server.model for server in self.pools.all if server.model)
        name = next(named, "default").replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".gguf")
        return Facts(
            names=self._deployment.model.alias or (name,),
            context_size=0,
            n_slots=max(1, self.pools.n_places),
            mode="faithful",
            form=CALLS,
            marks=THINKING,
            can_think=True,
            build=next((each.engine for each in self.pools.all if each.engine), ""),
        )

    @property
    def n_open(self) -> int:
        return self.pools.n_in_flight + self.pools.n_waiting

    @property
    def n_waiting(self) -> int:
        """Who waits for a server is told by `figures`."""
        return 0

    @property
    def n_places(self) -> int:
        return self.pools.n_places

    def full(self, n_coming: int) -> Failure | None:
        """Whether there is no place for one more beside those on their way in."""
        return self.pools.full(n_coming)

    async def state(self) -> State:
        ready = any(each.health.takes for each in self.pools.all)
        return State(
            status="draining" if self._closed else "ready" if ready else "died",
            n_busy=self.pools.n_in_flight,
            n_waiting=self.pools.n_waiting,
        )

    async def slots(self) -> list[dict[str, Any]]:
        """Every server, and what it is doing."""
        return [
            {
                "id": i,
                "pool": each.pool.name,
                "server": each.url,
                "engine": each.engine,
                "model": each.model,
                "speculative": each.pool.speculative,
                "state": each.health.state,
                "reason": each.health.reason,
                "is_processing": each.in_flight > 0,
                "in_flight": each.in_flight,
                "max_concurrent": each.pool.max_concurrent,
                "answers": each.n_answered,
                "failures": each.n_failed,
                "ejections": each.health.n_ejections,
                "counters": _counters(each),
                "by_answers": each.told.as_dict() if each.told.n_told else None,
            }
            for i, each in enumerate(self.pools.all)
        ]

    def tally(self) -> Tally:
        """Speculation over all servers, by what their answers or pages tell."""
        return together((each.told, each.page) for each in self.pools.all)

    async def figures(self) -> dict[str, Any]:
        return {
            **self.tally().as_dict(),
            "routes": [
                {
                    "route": name,
                    "speculates": timing.leader if timing.compared else None,
                    "ms_per_token": {
                        "speculative": ms(timing.sides[True].s_per_token),
                        "plain": ms(timing.sides[False].s_per_token),
                    },
                    "answers": {
                        "speculative": timing.sides[True].n_answers,
                        "plain": timing.sides[False].n_answers,
                    },
                }
                for name, timing in sorted(self.routes.items())
            ],
            "servers": await self.slots(),
            "queue": {"slots": self.pools.n_places, "waiting": self.pools.n_waiting},
            "retries": self.n_retries,
            "decisions": [
                {"route": route, "speculative": speculative, "reason": why, "requests": n}
                for (route, speculative, why), n in sorted(self.decisions.items())
            ],
        }

    async def live(self) -> dict[str, Any]:
        """What the front's snapshots tell: a server in a slot's words."""
        slots = [
            {
                "id": i,
                "busy": each.in_flight > 0,
                "prompt": 0,
                "generated": each.told.n_generated,
                "cached": each.in_flight,
                "pool": each.pool.name,
                "state": each.health.state,
            }
            for i, each in enumerate(self.pools.all)
        ]
        memory = {"place": "ram", "planned_bytes": None, "used_bytes": 0}
        return {
            "mode": None,
            "exact_class": None,
            "exact_cost_percent": None,
            "proposers": [],
            "drafter": "none",
            "baseline_ms": None,
            "slots": slots,
            "context_size": max(each.pool.max_concurrent for each in self.pools.all),
            "waiting": self.pools.n_waiting,
            "memory": {**memory, "used_pct": 0.0, "limit_pct": 100.0},
            "remembered_tokens": None,
            "groups": self._recent.look(self.facts.names[0]),
        }

    async def memory(self) -> dict[str, Any]:
        return {"remembers": False, "owners": 0, "tokens": 0, "max_tokens": 0}

    async def forget(self, owner: str | None) -> None:
        """Nothing is remembered here."""

    async def trace(self, answer_id: str) -> dict[str, Any] | None:
        return None

    async def render(self, ask: Ask) -> str:
        raise unsupported("apply-template")

    async def count(self, ask: Ask) -> int:
        raise unsupported("count_tokens")

    async def tokenize(
        self, text: str, *, add_special: bool, parse_special: bool, with_pieces: bool
    ) -> list[Token]:
        raise unsupported("tokenize")

    async def detokenize(self, tokens: Sequence[int]) -> str:
        raise unsupported("detokenize")

    async def save_slot(self, slot: int, name: str, owner: str) -> dict[str, Any]:
        raise unsupported("slots")

    async def restore_slot(self, slot: int, name: str, owner: str) -> dict[str, Any]:
        raise unsupported("slots")

    async def erase_slot(self, slot: int, owner: str) -> dict[str, Any]:
        raise unsupported("slots")

    def give_up(self) -> None:
        """Nobody waits any longer: answers end where they are."""
        self._closed = True
        self._over.set()

    async def close(self) -> None:
        """Hang up everywhere, once what was put off is done."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(server.close() for server in self.pools.all))

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """Something that must happen, but not before the answer goes on."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop itself keeps no reference
        task.add_done_callback(self._tasks.discard)


async def _close_when_idle(server: Server) -> None:
    while server.in_flight:
        await asyncio.sleep(0.2)
    await server.close()


def _refused(failure: Failure) -> Refused:
    return Refused(
        failure.status,
        failure.message,
        failure.kind,
        failure.code,
        failure.param,
        failure.retry_after,
    )


def _counters(server: Server) -> dict[str, Any] | None:
    page = server.page.last
    if page is None:
        return None
    return {"drafts": page.drafts, "drafted": page.drafted, "accepted": page.accepted}
