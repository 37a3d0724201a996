"""Seconds to the first token and to the last: cold prompts, a chat and an agent, exact or faithful.

  python -m benchmarks.measurements.turns [MODEL.gguf] --mode exact --kinds chat --json out.json

A cold prompt has `--cold` tokens and an answer of 8. A chat has six turns, from 300 tokens to
3,000, or those that `--chat` names by the tokens they add; a short one reads 1,900 tokens and four
times 30; an agent 4,000 and five times 200. Their answers have `--answer` tokens, with drafts from
the text alone, and `--think` seconds pass between two turns. With `--messages` each turn is a
user's message as the model's template writes it, else plain text. How much of its prompt a turn
reads is told, too. Three minutes on two cores; on a machine with other work they say little.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.measurements.cache_types import text_of
from benchmarks.measurements.hybrid import ask
from benchmarks.shared.arguments import parsed, parser_of
from benchmarks.shared.record import keep
from parlay.engine.engine import Engine
from parlay.engine.settings import EngineSettings
from parlay.hub.resolving import resolve_model
from parlay.llama.settings import ContextSettings
from parlay_train.frame import ScoreFrame, Template

# Tokens that each turn adds.
CHAT = (300, *[440] * 5)
AGENT = (4000, *[200] * 5)
SHORT = (1900, *[30] * 4)
KINDS = ("cold", "chat", "short", "agent")
NO_FRAME = ScoreFrame((), (), ())
N_COLD = 8  # tokens of an answer to a cold prompt


@dataclass(frozen=True, slots=True)
class Turn:
    """What one answer took."""

    kind: str
    n_prompt: int
    n_read: int
    first_s: float
    all_s: float


def turns(
    engine: Engine,
    kind: str,
    added: Sequence[int],
    answer: int,
    think_s: float,
    frame: ScoreFrame,
) -> Iterator[Turn]:
    """Each goes on from the answer before it; the first finds nothing."""
    engine.slots.erase(0)
    text, said = text_of(engine.model, sum(added)), list[int]()
    for n in added:
        time.sleep(think_s if said else 0.0)
        before = frame.between if said else frame.opening
        prompt, text = (*said, *before, *text[:n], *frame.closing), text[n:]
        seq = ask(engine, prompt, answer)
        assert seq.first_token is not None and seq.ended is not None
        began, n_read = seq.submitted, len(prompt) - seq.n_reused
        yield Turn(kind, len(prompt), n_read, seq.first_token - began, seq.ended - began)
        ended = seq.tokens[-1] in engine.model.vocabulary.ends
        said = list(seq.tokens[:-1] if ended else seq.tokens)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("model", nargs="?", default="default", help="GGUF file")
    parser.add_argument("--mode", choices=["exact", "faithful"], default="exact")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--cold", nargs="+", type=int, default=[500, 1500, 3000])
    parser.add_argument("--chat", nargs="+", type=int, default=CHAT)
    parser.add_argument("--answer", type=int, default=100)
    parser.add_argument("--think", type=float, default=0.0, help="seconds between two turns")
    parser.add_argument("--messages", action="store_true", help="turns of a chat, not plain text")
    args = parsed(parser, None)
    context = ContextSettings(context_size=8192, same_bits=args.mode == "exact")
    settings = EngineSettings(
        resolve_model(args.model), ("suffix",), context=context, mode=args.mode
    )
    every: dict[str, list[tuple[int, ...]]] = {
        "cold": [(n,) for n in args.cold],
        "chat": [tuple(args.chat)],
        "short": [SHORT],
        "agent": [AGENT],
    }
    wanted = [(kind, added) for kind in args.kinds for added in every[kind]]
    found: list[Turn] = []
    with Engine(settings) as engine:
        frame = Template(engine.model).frame if args.messages else NO_FRAME
        for kind, added in wanted:
            n_answer = N_COLD if kind == "cold" else args.answer
            for turn in turns(engine, kind, added, n_answer, args.think, frame):
                found.append(turn)
                print(
                    f"{turn.kind:6} {turn.n_prompt:5} tokens, {turn.n_read:5} read:"
                    f" first after {turn.first_s:6.2f} s, all after {turn.all_s:6.2f} s",
                    flush=True,
                )
    keep(args.json, found)


if __name__ == "__main__":
    main()
