"""The very first answer of an engine that knows nothing: when it bets, and how fast it becomes.

For each prompt an engine is opened with an empty cache, so that nothing was learned and prices are
measured anew. Its first answer is the controller's; plain decoding and fixed windows answer the
same prompt after it, so that nothing of theirs is of any use to it.

  python -m benchmarks.models.stand_ins --kind mixture --preset 30b --out /dev/shm/mixture.gguf
  python -m benchmarks.measurements.first_answer --model /dev/shm/mixture.gguf --windows 16 63
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.shared.arguments import parsed, parser_of
from benchmarks.shared.ratios import ratio_of_prompts, shown
from benchmarks.shared.record import keep
from parlay import Parlay
from parlay.bench.suite import Prompt, load_suite
from parlay.decoding.round import Round
from parlay.hub.resolving import resolve_model

AUTO, PLAIN = "controller", "plain"
N_AT_FIRST = 32  # tokens, from which on the controller should be as fast as it gets


@dataclass(slots=True)
class Seen:
    """The rounds of the answer at hand: where each began, its accepted tokens, its seconds."""

    rounds: list[tuple[int, int, float]] = field(default_factory=list)

    def observe(self, rounds: Sequence[Round]) -> None:
        self.rounds += [(r.position, r.n_accepted, r.timing.total_s) for r in rounds]


@dataclass(frozen=True, slots=True)
class First:
    """One engine."""

    prompt: str
    first_bet: int | None  # token before which a draft first held
    later_tps: float  # the controller's from the first round after so many tokens on
    tps: dict[str, float]  # of whole answers


def measure(model: Path, prompt: Prompt, windows: Sequence[int], n_tokens: int) -> First:
    with TemporaryDirectory() as cache:
        os.environ["PARLAY_CACHE"] = cache
        with Parlay(model, draft="suffix", mode="faithful") as parlay:
            seen = Seen()
            parlay.engine.call(lambda: parlay.engine.bets.listeners.append(seen))
            parlay.generate("Hi.", max_tokens=4, raw=True, draft="none")  # kernels are loaded
            seen.rounds.clear()

            def ask(draft: str | None = None, window: int | None = None) -> float:
                made = parlay._start(
                    list(prompt.messages),
                    whole=True,
                    max_tokens=n_tokens,
                    draft=draft,
                    window=window,
                )
                return made.answer.tokens_per_second

            tps = {AUTO: ask()}
            rounds = parlay.engine.ask(seen.rounds.copy).result()
            tps[PLAIN] = ask("none")
            tps |= {f"window {k}": ask(window=k) for k in windows}
    bets = [at for at, accepted, _ in rounds if accepted]
    later = [(1 + accepted, s) for at, accepted, s in rounds if at >= N_AT_FIRST]
    n, seconds = (sum(column) for column in zip(*later, strict=True)) if later else (0, 1.0)
    return First(prompt.id, bets[0] if bets else None, n / seconds, tps)


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--windows", type=int, nargs="*", default=[16])
    parser.add_argument("--suite", default="core-12")
    parser.add_argument("--prompts", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    args = parsed(parser, argv)
    model = resolve_model(args.model)  # before it is looked for in an empty cache
    prompts, found = load_suite(args.suite).prompts, list[First]()
    for prompt in prompts[:: max(1, len(prompts) // args.prompts)][: args.prompts]:
        found.append(one := measure(model, prompt, args.windows, args.tokens))
        speeds = ", ".join(f"{name} {tps:.0f}" for name, tps in one.tps.items())
        print(
            f"{one.prompt}: {speeds} tok/s; first bet that held before token {one.first_bet};"
            f" {one.later_tps:.0f} tok/s after {N_AT_FIRST} tokens",
            flush=True,
        )
        keep(args.json, found)
    for name in (name for name in found[0].tps if name != AUTO):
        own, base = ([one.tps[who] for one in found] for who in (AUTO, name))
        print(f"controller over {name}: {shown(ratio_of_prompts(own, base))}")


if __name__ == "__main__":
    main()
