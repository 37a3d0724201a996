"""A loaded model in its engine process: opened, answered by, looked after, told about.

Knows the deployment, the engine and the prompter; knows neither sockets nor HTTP. What is
learned is kept when it ends.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from parlay.ask import Ask, Done, Facts, Refused, Reply, State, Token
from parlay.backend import opening, wire
from parlay.backend.answer_memory import AnswerMemory
from parlay.backend.answering import Answering, Making
from parlay.backend.cache_care import CacheCare
from parlay.backend.drafter_care import DrafterCare
from parlay.backend.footprint import Footprint
from parlay.backend.memory_pressure import MemoryPressure, process_bytes
from parlay.backend.monitor import INTERVAL_S, Monitor
from parlay.backend.serving import Tell
from parlay.backend.slot_files import SlotFiles, make_slot_folder
from parlay.backend.traces import Traces
from parlay.backend.warmup import WarmUp
from parlay.chat.prompter import Prompter, PromptSettings
from parlay.control.guard import LimitAlert
from parlay.deployment import Deployment
from parlay.engine.pricing import Pricing
from parlay.errors import BadRequest, LoadError

_GRACE_S = 0.25  # a client that waited for the model asks at once
_PATIENCE_S = 10.0
_READING_EVERY = 5  # looks between words about prompts that are being read


class Host:
    """One model, served by one process."""

    def __init__(
        self,
        deployment: Deployment,
        after_pass: Callable[[], None],
        trouble: Callable[[str, str | None], None],
    ) -> None:
        """`after_pass` is called on the engine's thread, `trouble` on any."""
        self.deployment = opening.with_fit(
            opening.with_name(opening.with_known_drafter(deployment))
        )
        self.engine, self._observer = opening.open_engine(self.deployment, after_pass)
        self._told_of: set[str] = set()  # troubles
        self._send_trouble = trouble
        self._loop = asyncio.get_running_loop()
        self._open: dict[int, tuple[Making, Tell]] = {}
        self._probe: tuple[float, Future[None]] | None = None
        self._memory = MemoryPressure(deployment.monitoring.memory_pressure_pct)
        kept = deployment.runtime.remember_file
        self._remembered = AnswerMemory(self.engine, Path(kept).expanduser() if kept else None)
        self._footprint = Footprint(self.deployment, on_gpu=self.engine.model.on_gpu)
        self._traces = Traces(self._observer.baseline)
        self._warm_up = WarmUp(self.engine, self._observer.baseline)
        self._cache = CacheCare(self.engine)
        self._pricing: Pricing | None = None
        drafters = opening.drafter_paths(self.deployment)
        if self.deployment.runtime.adaptive:
            self._pricing = Pricing(self.engine, drafters)
            self._warm_up.price(self._pricing)
        self._guard = opening.guarded(self.deployment, self._pricing, self._hear_guard)
        prices = None if self._pricing is None else self._pricing.prices
        self.engine.call(partial(self.engine.control, self._guard, prices)).result()
        self._drafter = DrafterCare(
            self.engine,
            drafters,
            self._trouble,
            check=lambda paths: opening.check_drafters(self.deployment, paths),
            on_ready=self._pair,
        )
        self._prompter = self._make_prompter()
        self._answering = Answering(
            self.engine,
            self._prompter,
            self._observer.baseline,
            logs_texts=lambda: self.deployment.monitoring.log_prompts,
        )
        self._slot_files = self._make_slot_files()
        gc.collect()
        gc.freeze()  # what is loaded stays: no collection need look at it while answers are made
        self._tasks = [
            self._loop.create_task(self._care()),
            self._loop.create_task(self._measure()),
        ]

    def _make_prompter(self) -> Prompter:
        model = self.engine.model
        return Prompter(
            model.vocabulary,
            model.chat_template(),
            mode=self.engine.mode,
            context_size=self.engine.target.context_size,
            recommended=model.facts.temperature,
            settings=self._prompt_settings(),
            pressed=lambda: self._memory.pressed,
        )

    def _prompt_settings(self) -> PromptSettings:
        server, runtime = self.deployment.server, self.deployment.runtime
        given = "default_temperature" in server.model_fields_set
        return PromptSettings(
            temperature=server.default_temperature if given else None,
            max_prompt_tokens=server.max_prompt_tokens,
            max_answer_tokens=server.max_answer_tokens,
            context_full=runtime.context_full,
            routes=self.deployment.routes,
            adaptive=runtime.adaptive,
            trusted=server.parse_special_in_messages,
        )

    def _make_slot_files(self) -> SlotFiles:
        server = self.deployment.server
        folder = None if server.slot_save_path is None else Path(server.slot_save_path).expanduser()
        if folder is not None:
            make_slot_folder(folder)
        return SlotFiles(self.engine, folder, server.slot_save_mb << 20)

    def follow(self, given: dict[str, Any]) -> None:
        """What of a deployment that was read again needs no other engine."""
        new = Deployment.model_validate(given)
        update = {
            "server": new.server,
            "monitoring": new.monitoring,
            "routes": new.routes,
            "model": self.deployment.model.model_copy(update={"alias": new.model.alias}),
        }
        self.deployment = opening.with_name(self.deployment.model_copy(update=update))
        self._prompter.follow(self._prompt_settings())
        self._slot_files = self._make_slot_files()
        self._memory.limit_pct = new.monitoring.memory_pressure_pct

    # -- answering ------------------------------------------------------------

    @property
    def facts(self) -> Facts:
        alias = self.deployment.model.alias
        names = alias or (self.engine.settings.target.stem,)
        n_slots = self.engine.settings.context.n_sequences
        return self._prompter.facts(names, n_slots, opening.build())

    async def begin(self, ask: Ask, tell: Tell) -> Callable[[], None]:
        """Understood beside the loop; its words come on the engine's thread."""

        def told(replies: Sequence[Reply]) -> None:
            tell(replies)
            if isinstance(replies[-1], (Done, Refused)):
                self._loop.call_soon_threadsafe(self._end, ask.id)

        making = await asyncio.to_thread(self._answering.begin, ask, told)
        timer = None
        if ask.time_limit_s is not None:
            timer = self._loop.call_later(ask.time_limit_s, making.expire)
        known = ask.model in self.deployment.model.alias
        self._traces.begin(making, ask.model if known else self.facts.names[0])
        self._open[id(making)] = making, told

        def take_back() -> None:
            if timer is not None:
                timer.cancel()
            making.cancel()

        return take_back

    def _end(self, _answer_id: str) -> None:
        """Some are over: what their rounds tell is kept, they are not."""
        for key, (making, _) in list(self._open.items()):
            if not making.n_open:
                self._traces.end(making)
                del self._open[key]

    # -- care -----------------------------------------------------------------

    async def _care(self) -> None:
        monitor = Monitor(
            self.engine,
            self._observer,
            self._drafter,
            self._cache,
            self._memory,
            self._trouble,
            self._keep_learned,
        )
        n_looks = 0
        while True:
            await asyncio.sleep(INTERVAL_S)
            monitor.look(self.deployment, self._guard)
            self._end("")
            n_looks += 1
            if n_looks % _READING_EVERY == 0:
                for making, tell in list(self._open.values()):
                    if reading := making.reading():
                        tell(reading)

    async def _measure(self) -> None:
        """Measure, then load the drafter; whatever can wait goes after the answers asked for."""
        await asyncio.sleep(_GRACE_S)
        await self._warm_up.run(_PATIENCE_S)
        end = time.monotonic() + _PATIENCE_S
        while self._open and time.monotonic() < end:  # loading beside them would slow them down
            await asyncio.sleep(_GRACE_S)
        await self._drafter.load()
        await self._warm_up.go_on()

    def _pair(self, drafters: tuple[Path, ...]) -> None:
        """Other drafters are in use, on the engine's thread from its next round."""
        if self._pricing is not None:
            self.engine.call(partial(self._pricing.pair, drafters))

    def _keep_learned(self) -> None:
        """Save what the controller learned; on the engine's thread, which learns it."""
        self._remembered.keep()
        if self._pricing is not None:
            self.engine.call(self._pricing.save)

    def _hear_guard(self, alert: LimitAlert) -> None:
        """A guard rail acted, on the engine's thread; the share of fallbacks is watched anyway."""
        text = f"{alert.kind} is {alert.value:.3g}, below {alert.limit:g}: decoding plainly"
        if alert.kind != "fallback_share":
            self._loop.call_soon_threadsafe(self._trouble, "low_acceptance", text)

    def _trouble(self, kind: str, message: str | None) -> None:
        """Told once when it begins, and once when it is over."""
        if (message is not None) == (kind in self._told_of):
            return
        self._told_of ^= {kind}
        self._send_trouble(kind, message)

    def passing_s(self) -> float:
        """How long the engine's thread has not come to the end of a round."""
        now = time.monotonic()
        if self._probe is not None and not self._probe[1].done():
            return now - self._probe[0]
        self._probe = None
        if self.engine.active or self.engine.n_waiting:
            self._probe = now, self.engine.call(lambda: None)
        return 0.0

    def close(self) -> None:
        """Keep what was learned and free everything."""
        for task in self._tasks:
            self._loop.call_soon_threadsafe(task.cancel)
        self._keep_learned()
        self.engine.close()

    # -- what else can be asked -----------------------------------------------

    async def call(self, name: wire.CallName, arguments: dict[str, Any]) -> Any:
        """Each by its name; what it takes and gives stands in `ask.Backend`."""
        given = dict(arguments)
        if "ask" in given:
            given["ask"] = msgspec.convert(given["ask"], Ask)
        return await getattr(self, f"_call_{name}")(**given)

    async def _call_render(self, ask: Ask) -> str:
        return await asyncio.to_thread(self._prompter.render, ask)

    async def _call_count(self, ask: Ask) -> int:
        return await asyncio.to_thread(self._prompter.count, ask)

    async def _call_tokenize(
        self, text: str, add_special: bool, parse_special: bool, with_pieces: bool
    ) -> list[Token]:
        vocabulary = self.engine.model.vocabulary

        def work() -> list[Token]:
            found = vocabulary.tokenize(text, bos=add_special, special=parse_special)
            pieces = {t: vocabulary.text_of(t) for t in set(found)} if with_pieces else {}
            return [Token(token, pieces.get(token, "")) for token in found]

        return await asyncio.to_thread(work)

    async def _call_detokenize(self, tokens: list[int]) -> str:
        vocabulary = self.engine.model.vocabulary
        if any(not 0 <= token < vocabulary.size for token in tokens):
            raise BadRequest(f"tokens holds a token outside 0 to {vocabulary.size - 1}")
        return await asyncio.to_thread(vocabulary.detokenize, tokens)

    async def _call_save_slot(self, slot: int, name: str, owner: str) -> dict[str, Any]:
        return await self._slot_files.save(slot, name, owner)

    async def _call_restore_slot(self, slot: int, name: str, owner: str) -> dict[str, Any]:
        return await self._slot_files.restore(slot, name, owner)

    async def _call_erase_slot(self, slot: int, owner: str) -> dict[str, Any]:
        return await self._slot_files.erase(slot, owner)

    async def _call_memory(self) -> dict[str, Any]:
        told = self._remembered.told
        return {
            "remembers": told is not None,
            "owners": told.n_owners if told else 0,
            "tokens": told.n_tokens if told else 0,
            "max_tokens": told.max_tokens if told else 0,
        }

    async def _call_forget(self, owner: str | None) -> None:
        await asyncio.wrap_future(self._remembered.forget(owner))

    async def _call_trace(self, answer_id: str) -> dict[str, Any] | None:
        self._end("")
        return self._traces.trace(answer_id)

    async def _call_follow(self, deployment: dict[str, Any]) -> Facts:
        self.follow(deployment)
        return self.facts

    async def _call_fits_beside(self, deployment: dict[str, Any]) -> bool:
        """By what is free now; a context or layers that are to be found fit by themselves."""

        def fits() -> bool:
            wanted = opening.with_known_drafter(Deployment.model_validate(deployment))
            opening.check_files(wanted)  # one that cannot be loaded is not waited for
            try:
                opening.check_memory(wanted)
            except LoadError:
                return False
            return True

        return await asyncio.to_thread(fits)

    async def _footprint_now(self) -> dict[str, Any]:
        drafters = self._drafter.paths if self._drafter.state == "ready" else ()
        return await asyncio.to_thread(self._footprint.look, drafters)

    async def _call_state(self) -> State:
        engine = self.engine
        return State(
            status="ready",
            drafter=self._drafter.state,
            exact_class=engine.exact_name,
            exact_cost_percent=engine.chosen.cost_percent,
            proposers=tuple(engine.drafts.named),
            n_busy=len(engine.active),
            n_waiting=engine.n_waiting,
        )

    async def _call_slots(self) -> list[dict[str, Any]]:
        engine = self.engine
        working = {seq.seq_id: seq for seq in engine.active}
        found = []
        for slot in engine.slots.all:
            seq = working.get(slot.seq_id)
            found.append(
                {
                    "id": slot.seq_id,
                    "n_ctx": engine.target.context_size,
                    "is_processing": seq is not None,
                    "n_cached": len(slot.tokens) if seq is None else seq.n_cached,
                    "n_prompt": 0 if seq is None else len(seq.request.prompt),
                    "n_generated": 0 if seq is None else seq.n_generated,
                    "speculation": None if seq is None else seq.counts.as_dict(),
                }
            )
        return found

    async def _call_live(self) -> dict[str, Any]:
        """What the front's snapshots tell of an engine."""
        state, memory = await self._call_state(), await self._call_memory()
        single = self._observer.baseline.of(1)
        slots = [
            {
                "id": slot["id"],
                "busy": slot["is_processing"],
                "prompt": slot["n_prompt"],
                "generated": slot["n_generated"],
                "cached": slot["n_cached"],
            }
            for slot in await self._call_slots()
        ]
        return {
            "mode": self.engine.mode,
            "exact_class": state.exact_class,
            "exact_cost_percent": state.exact_cost_percent,
            "proposers": list(state.proposers),
            "drafter": state.drafter,
            "baseline_ms": None if single is None else round(1e3 * single, 3),
            "slots": slots,
            "context_size": self.engine.target.context_size,
            "waiting": state.n_waiting,
            "memory": {
                **await self._footprint_now(),
                "used_pct": self._memory.used_pct,
                "limit_pct": self._memory.limit_pct,
            },
            "remembered_tokens": memory["tokens"] if memory["remembers"] else None,
            "groups": self._traces.look(),
        }

    async def _call_figures(self) -> dict[str, Any]:
        """The object of /metrics/speculative but for what is the front's; and its gauges."""
        engine, observer = self.engine, self._observer
        counts, baseline = observer.counts, observer.baseline
        live, drafter = baseline.live_speedup, self._drafter
        fallback_s = dict(counts.fallback_s)
        return {
            **counts.as_dict(),
            "draft_ms": round(observer.draft_s * 1e3, 3),
            "verify_ms": round(observer.verify_s * 1e3, 3),
            "overhead_ms": round(observer.overhead_s * 1e3, 3),
            "positions": {
                str(j): {"drafted": n, "accepted": counts.accepted_at[j]}
                for j, n in sorted(dict(counts.drafted_at).items())
            },
            "fallback_ms": {why.value: round(s * 1e3, 3) for why, s in fallback_s.items()},
            "fallback_share": round(observer.recent_sums().fallback_share, 4),
            "recent": observer.recent_counts().as_dict(),
            "speedup": None if live is None else round(live, 4),
            "baseline_ms": {
                str(n): round(s * 1e3, 3) for n, s in sorted(dict(baseline.pass_s).items())
            },
            "mode": engine.mode,
            "exact": {
                "class": engine.exact_name,
                "rows": [*engine.exact.rows_for(1)],
                "concurrent": engine.exact.whole,
                "cost_percent": engine.chosen.cost_percent,
                "reason": None if engine.spoiled is None else engine.spoiled.value,
            },
            "drafter": {
                "state": drafter.state,
                "reason": None if drafter.reason is None else drafter.reason.value,
                "detail": drafter.detail,
                "proposers": list(engine.drafts.named),
            },
            "queue": {"slots": len(engine.slots.all), "waiting": engine.n_waiting},
            "cache": self._cache.as_dict(),
            "memory_used_percent": self._memory.used_pct,
            "gauges": self._gauges(),
        }

    def _gauges(self) -> dict[str, Any]:
        """What only Prometheus is told."""
        engine, counts = self.engine, self._observer.counts
        active, n_slots = engine.active, len(engine.slots.all)
        idle = [slot for slot in engine.slots.all if not slot.busy]
        return {
            "speculated_rounds": counts.n_speculated_rounds,
            "fully_accepted_rounds": counts.n_fully_accepted,
            "compactions": self._cache.n_compactions,
            "baseline_s": self._observer.baseline.of(1),
            "slots_busy": len(active),
            "cache_tokens": sum(s.n_cached for s in active) + sum(len(s.tokens) for s in idle),
            "cache_capacity": engine.target.context_size * n_slots,
            "cache_holes": sum(engine.target.holes(s.seq_id, s.n_cached) for s in active),
            "process_bytes": process_bytes(),
        }
