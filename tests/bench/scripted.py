"""Subjects with a script and a clock that only moves when they say so."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from parlay.bench.record import ArmInfo, Sample
from parlay.bench.subject import Ask, Reply, SubjectError
from parlay.bench.suite import Prompt, Suite, suite_hash
from parlay.reading.speculation import Speculation

PLAIN = ArmInfo(name="plain", kind="parlay", method="none", speculates=False)
SUFFIX = ArmInfo(name="suffix", kind="parlay", method="suffix", speculates=True)


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Scripted:
    """Answers at a speed that depends on the prompt and on noise."""

    info: ArmInfo
    clock: Clock
    speed: Callable[[Prompt, int], float]  # prompt, number of the ask -> tokens a second
    text: Callable[[Prompt], str] = lambda prompt: f"answer to {prompt.id}"
    accepted_share: float = 0.0
    fails: Callable[[int], bool] = lambda n: False
    n_asked: int = 0
    warmed: int = 0
    asked: list[str] = field(default_factory=list)

    def warm_up(self, ask: Ask) -> None:
        self.warmed += 1
        self.clock.now += 1

    def ask(self, ask: Ask) -> Reply:
        self.n_asked += 1
        self.asked.append(ask.prompt.id)
        if self.fails(self.n_asked):
            self.clock.now += 0.5
            raise SubjectError("scripted failure at /home/somebody/models/x.gguf")
        decode_s = (ask.max_tokens - 1) / self.speed(ask.prompt, self.n_asked)
        self.clock.now += 0.2 + decode_s
        return Reply(
            text=self.text(ask.prompt),
            n_tokens=ask.max_tokens,
            n_prompt=50,
            first_token_s=0.2,
            decode_s=decode_s,
            wall_s=0.2 + decode_s,
            server_decode_s=decode_s,
            finish_reason="length",
            speculation=self._speculation(ask.max_tokens, decode_s),
        )

    def _speculation(self, n: int, decode_s: float) -> Speculation:
        accepted = int(self.accepted_share * n)
        if not accepted:
            return Speculation(
                drafted=0, accepted=0, rounds=n, windows={"0": n}, draft_s=0.0, verify_s=decode_s,
                overhead_s=0.0,
            )  # fmt: skip
        return Speculation(
            drafted=accepted + 10,
            accepted=accepted,
            rounds=n - accepted,
            speculated_rounds=accepted // 2 + 5,
            fully_accepted=accepted // 2,
            tried_at=[accepted // 2 + 5, accepted // 2],
            accepted_at=[accepted // 2, accepted // 2],
            windows={"0": max(0, n - accepted - accepted // 2 - 5), "2": accepted // 2 + 5},
            proposers={"suffix": accepted // 2 + 5},
            fallbacks={"no_draft": 3},
            draft_s=0.1 * decode_s,
            verify_s=0.8 * decode_s,
            overhead_s=0.1 * decode_s,
        )


def small_suite(n: int = 6) -> Suite:
    prompts = tuple(
        Prompt(f"p{i}", "code" if i % 2 else "math", ({"role": "user", "content": f"say {i}"},), 40)
        for i in range(n)
    )
    return Suite("small", None, suite_hash(prompts), prompts)


def noisy(base: float, spread: float, seed: int) -> Callable[[Prompt, int], float]:
    """A speed with log-normal noise."""
    rng = random.Random(seed)
    return lambda prompt, n: base * rng.lognormvariate(0.0, spread)


def sample(
    prompt: str = "p0",
    arm: str = "plain",
    repeat: int = 0,
    position: int = 0,
    speed: float = 100.0,
    n_tokens: int = 101,
    **more: object,
) -> Sample:
    seconds = (n_tokens - 1) / speed
    fields: dict[str, object] = {
        "prompt": prompt,
        "arm": arm,
        "repeat": repeat,
        "position": position,
        "at_s": float(position),
        "outcome": "ok",
        "n_tokens": n_tokens,
        "first_token_s": 0.1,
        "decode_s": seconds,
        "wall_s": 0.1 + seconds,
        "text_sha256": "0" * 64,
    }
    return Sample.model_validate({**fields, **more})
