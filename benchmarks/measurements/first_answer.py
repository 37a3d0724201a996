"""The very first answer of an engine that knows nothing: when it bets, and how fast it becomes.

For each prompt an engine is opened with an empty cache, so that nothing was learned and prices are
measured anew. Its first answer is the controller's; plain decoding and fixed windows answer the
same prompt after it, so that nothing of theirs is of any use to it. With --loop every answer is a
passage of so many tokens, again and again, whatever the model would say: a text that repeats
itself, and the same for all.

  python -m benchmarks.models.stand_ins --kind mixture --preset 30b --out /dev/shm/mixture.gguf
  python -m benchmarks.measurements.first_answer --model /dev/shm/mixture.gguf --windows 16 63
  python -m benchmarks.measurements.first_answer --model 8b-q5_0.gguf --windows 16 63 --loop 24
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.shared.arguments import parsed, parser_of
from benchmarks.shared.own_recordings import add_own_recordings, heed
from benchmarks.shared.ratios import ratio_of_prompts, shown
from benchmarks.shared.record import keep
from benchmarks.shared.told import told
from parlay import Parlay
from parlay.bench.suite import Prompt, load_suite
from parlay.decoding.round import Round
from parlay.engine.request import Mode
from parlay.hub.resolving import resolve_model

AUTO, PLAIN = "controller", "plain"
N_AT_FIRST = 32  # tokens that repeat, after which the controller should be as fast as it gets


Told = tuple[int, int, float]  # of a round: where it began, its accepted tokens, its seconds


@dataclass(slots=True)
class Seen:
    """The rounds of the answer at hand."""

    rounds: list[Told] = field(default_factory=list)

    def observe(self, rounds: Sequence[Round]) -> None:
        self.rounds += [(r.position, r.n_accepted, r.timing.total_s) for r in rounds]


@dataclass(frozen=True, slots=True)
class First:
    """One engine."""

    prompt: str
    first_bet: int | None  # token before which a draft of the controller's first held
    tps: dict[str, float]  # of whole answers
    later_tps: dict[str, float]  # the same from the first round after so many tokens on


def measure(
    model: Path,
    mode: Mode,
    prompt: Prompt,
    windows: Sequence[int],
    n_tokens: int,
    n_passage: int,
) -> First:
    with TemporaryDirectory() as cache:
        os.environ["PARLAY_CACHE"] = cache
        with Parlay(model, draft="suffix", mode=mode) as parlay:
            seen = Seen()
            parlay.engine.call(lambda: parlay.engine.listeners.append(seen))
            parlay.generate(
                "Hi.", temperature=0, max_tokens=4, raw=True, draft="none"
            )  # kernels are loaded
            said, n_prompt = script(parlay, prompt, n_tokens, n_passage)
            tps, later, rounds = dict[str, float](), dict[str, float](), list[Told]()

            def ask(name: str, draft: str | None = None, window: int | None = None) -> None:
                parlay.engine.call(seen.rounds.clear).result()
                with told(parlay, said, n_prompt):
                    made = parlay._start(
                        list(prompt.messages),
                        whole=True,
                        max_tokens=n_tokens,
                        draft=draft,
                        window=window,
                    )
                    tps[name] = made.answer.tokens_per_second
                own = parlay.engine.call(seen.rounds.copy).result()
                later[name] = _speed([each for each in own if each[0] >= N_AT_FIRST + n_passage])
                rounds.extend(own if name == AUTO else ())

            ask(AUTO)
            ask(PLAIN, "none")
            for k in windows:
                ask(f"window {k}", window=k)
    bets = [at for at, accepted, _ in rounds if accepted]
    return First(prompt.id, bets[0] if bets else None, tps, later)


def script(
    parlay: Parlay, prompt: Prompt, n_tokens: int, n_passage: int
) -> tuple[list[int] | None, int]:
    """What is to be said, and the tokens before it; None: what the model likes."""
    if not n_passage:
        return None, 0
    passage = parlay.engine.target.sample[:n_passage]
    asked = parlay._start(list(prompt.messages), whole=True, max_tokens=1, draft="none")
    return (list(passage) * n_tokens)[:n_tokens], asked.answer.n_prompt


def _speed(rounds: Sequence[Told]) -> float:
    seconds = sum(s for _, _, s in rounds)
    return sum(1 + accepted for _, accepted, _ in rounds) / seconds if seconds else 0.0


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--windows", type=int, nargs="*", default=[16])
    parser.add_argument("--suite", default="core-12")
    parser.add_argument("--prompts", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--mode", choices=("exact", "faithful"), default="faithful")
    parser.add_argument("--loop", type=int, default=0, help="tokens of the one passage it says")
    add_own_recordings(parser)
    args = parsed(parser, argv)
    heed(args)
    at_first = N_AT_FIRST + args.loop
    model = resolve_model(args.model)  # before it is looked for in an empty cache
    prompts, found = load_suite(args.suite).prompts, list[First]()
    for prompt in prompts[:: max(1, len(prompts) // args.prompts)][: args.prompts]:
        found.append(one := measure(model, args.mode, prompt, args.windows, args.tokens, args.loop))
        whole, later = (
            ", ".join(f"{name} {tps:.0f}" for name, tps in each.items())
            for each in (one.tps, one.later_tps)
        )
        print(
            f"{one.prompt}: {whole} tok/s; first bet that held before token {one.first_bet};"
            f" after {at_first} tokens {later} tok/s",
            flush=True,
        )
        keep(args.json, found)
    for name in (name for name in found[0].tps if name != AUTO):
        for when, speeds in (
            ("", [one.tps for one in found]),
            (f" after {at_first} tokens", [one.later_tps for one in found]),
        ):
            own, base = ([each[who] for each in speeds] for who in (AUTO, name))
            print(f"controller over {name}{when}: {shown(ratio_of_prompts(own, base))}")


if __name__ == "__main__":
    main()
