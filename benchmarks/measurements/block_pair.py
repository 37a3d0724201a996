"""A large target with a block drafter in shape: true costs, known acceptance.

    python -m benchmarks.models.stand_ins --kind hybrid --preset 27b --out /dev/shm/hybrid-27b.gguf
    python -m benchmarks.measurements.block_pair --target /dev/shm/hybrid-27b.gguf --json pair.json

The drafter has random weights and is as large as published ones (5 layers, the target's width,
blocks of 16); it is written beside the target. Its passes are really made; its tokens are taken
from the target's own recorded text, each right with a chosen chance. So a round costs what it
would, and acceptance is known. For each share: what a round took beside its pass and its block, the
speed-up over plain decoding, and what the measured prices promise for that many tokens a round.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as TensorKind
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from numpy.typing import NDArray

from benchmarks.measurements.hybrid import told
from benchmarks.models.expand import TYPES, Noise, Tensor, write_tensors
from benchmarks.shared.arguments import parser_of
from parlay import Parlay
from parlay.decoding.draft import Draft
from parlay.decoding.round import Round
from parlay.engine.answer import Answer
from parlay.llama.facts import Facts, read_facts
from parlay.proposers.follower import Follower
from parlay.proposers.proposer import Ask, Proposer, Worth

PROMPTS = (
    "Write a function that sorts a list of dates.",
    "Explain how a lighthouse works.",
    "List the steps for changing a bicycle tyre.",
    "Tell a short story about a harbour in winter.",
)
N_WITH = 8  # passes of a plain answer, its prompt's included, before states stay inside
N_LAYERS, N_READ, HEAD_SIZE, GROUP = 5, 5, 128, 4  # GROUP: query heads to a key head


# -- a drafter of random weights -----------------------------------------------------------------


def write_drafter(target: Path, out: Path, *, block_size: int, type_name: str, seed: int) -> None:
    """A DFlash drafter of the target's width that borrows its embeddings and head."""
    facts, reader = read_facts(target), GGUFReader(target)
    layers = sorted({1 + i * (facts.n_layers - 2) // max(1, N_READ - 1) for i in range(N_READ)})
    n_kv = max(1, min(32, facts.n_embd // HEAD_SIZE) // GROUP)
    n_heads = GROUP * n_kv
    head_size = min(HEAD_SIZE, facts.n_embd // n_heads)
    writer = GGUFWriter(out, "dflash")
    writer.add_block_count(N_LAYERS)
    writer.add_context_length(facts.n_ctx_train)
    writer.add_embedding_length(facts.n_embd)
    writer.add_feed_forward_length(_inner(facts))
    writer.add_head_count(n_heads)
    writer.add_head_count_kv(n_kv)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_uint32("dflash.block_size", block_size)
    writer.add_array("dflash.target_layers", layers)
    for name, field in reader.fields.items():
        if name.startswith("tokenizer.") and not name.endswith("mask_token_id"):
            kind = field.types[0]
            inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kind, inner)
    writer.add_mask_token_id(0)
    heads = (n_heads * head_size, n_kv * head_size, head_size)
    tensors = _tensors(facts, len(layers), heads, Noise(seed), TYPES[type_name][0])
    write_tensors(writer, tensors)


def _inner(facts: Facts) -> int:
    return facts.n_ff or 3 * facts.n_embd


def _tensors(
    facts: Facts, n_read: int, heads: tuple[int, int, int], noise: Noise, kind: TensorKind
) -> list[Tensor]:
    width, inner, (q, kv, head) = facts.n_embd, _inner(facts), heads

    def matrix(name: str, rows: int, columns: int) -> Tensor:
        return Tensor(name, (rows, columns), kind, lambda: noise.matrix(rows, columns, kind))

    def ones(name: str, n: int) -> Tensor:
        return Tensor(name, (n,), TensorKind.F32, lambda: np.ones(n, np.float32))

    made = [_wide("fc.weight", width, n_read * width)]
    made += [ones("enc.output_norm.weight", width), ones("output_norm.weight", width)]
    for i in range(N_LAYERS):
        at = f"blk.{i}."
        made += [ones(f"{at}attn_norm.weight", width), ones(f"{at}ffn_norm.weight", width)]
        made += [ones(f"{at}attn_q_norm.weight", head), ones(f"{at}attn_k_norm.weight", head)]
        made += [matrix(f"{at}attn_q.weight", q, width), matrix(f"{at}attn_k.weight", kv, width)]
        made += [matrix(f"{at}attn_v.weight", kv, width)]
        made += [matrix(f"{at}attn_output.weight", width, q)]
        made += [matrix(f"{at}ffn_gate.weight", inner, width)]
        made += [matrix(f"{at}ffn_up.weight", inner, width)]
        made += [matrix(f"{at}ffn_down.weight", width, inner)]
    return made


def _wide(name: str, rows: int, columns: int) -> Tensor:
    """Numbers of a wide range, for what multiplies states as they are: in a target of random
    weights those grow beyond what the half-precision sums of quantised kernels can hold."""

    def make() -> NDArray[np.uint8]:
        drawn = np.random.default_rng(0).standard_normal((rows, columns), np.float32)
        halves = ((drawn / np.float32(columns) ** 0.5).view(np.uint32) >> 16).astype("<u2")
        made: NDArray[np.uint8] = halves.view(np.uint8)
        return made

    return Tensor(name, (rows, columns), TensorKind.BF16, make)


# -- drafts from a recording ---------------------------------------------------------------------


class Recorded(Proposer):
    """A drafter whose passes are made and whose tokens are the recording's, with errors."""

    def __init__(self, drafter: Follower, share: float, n_vocab: int) -> None:
        self.name = drafter.name
        self._drafter = drafter
        self._share = share
        self._n_vocab = n_vocab
        self._text: tuple[int, ...] = ()
        self._n_prompt = 0
        self._rng = random.Random()

    def play(self, n_prompt: int, text: Sequence[int]) -> None:
        """From here on this answer is given; each has errors of its own, the same in every run."""
        self._n_prompt, self._text = n_prompt, tuple(text)
        self._rng.seed(f"{self._share} {self._text}")

    def draft(self, asks: Sequence[Ask], worth: Worth | None = None) -> list[Draft]:
        made = self._drafter.draft(asks)
        return [self._exchange(ask, draft) for ask, draft in zip(asks, made, strict=True)]

    def meanwhile(self, ask: Ask, draft: Sequence[int]) -> None:
        self._drafter.meanwhile(ask, draft)

    def n_unread(self, seq_id: int, tokens: Sequence[int]) -> int:
        return self._drafter.n_unread(seq_id, tokens)

    def _exchange(self, ask: Ask, draft: Draft) -> Draft:
        at = len(ask.tokens) - self._n_prompt
        text = self._text[at : at + ask.window]
        if not draft.tokens or not text:
            return draft
        tokens = tuple(
            token if self._rng.random() < self._share else (token + 1) % self._n_vocab
            for token in text
        )
        sure = (self._share,) * len(tokens) if draft.confidence else ()
        return replace(draft, tokens=tokens, confidence=sure)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)


# -- what is measured ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One share of right tokens, all prompts together."""

    right: float
    window: int | None  # None: the controller's choice
    drafted: float  # the share of rounds with a draft
    tokens_per_round: float
    round_ms: float  # of those with a draft, at the median
    pass_and_block_ms: float
    beside: float  # round over pass and block
    speedup: float
    promised: float  # by the prices, for the same rounds
    same_text: bool
    states: States | None  # what reading states out costs plain passes
    rounds: list[dict[str, Any]]  # what the controller did; of windows that were given none


@dataclass(frozen=True, slots=True)
class States:
    """A plain answer after a drafted one: its first passes read states out, the others do not."""

    with_ms: float
    without_ms: float
    switch_ms: float  # what the first pass without them took beyond those that followed


class Hearing:
    """Keeps the rounds of an answer."""

    def __init__(self) -> None:
        self.rounds: list[Round] = []

    def observe(self, rounds: Sequence[Round]) -> None:
        self.rounds += rounds


def decode_plainly(parlay: Parlay, n_tokens: int, n_prompts: int) -> list[Answer]:
    return [
        parlay.generate(prompt, raw=True, temperature=0, max_tokens=n_tokens, draft="none")
        for prompt in PROMPTS[:n_prompts]
    ]


def measure(parlay: Parlay, share: float, window: int | None, plain: Sequence[Answer]) -> Row:
    """Plain decoding is timed again beside it: a machine's speed drifts."""
    engine, plainly = parlay.engine, Hearing()
    inner, heard = engine.drafts.proposers["model"], Hearing()
    assert isinstance(inner, Follower)
    scripted = Recorded(inner, share, engine.target.n_vocab)
    engine.drafts.proposers["model"] = scripted
    engine.listeners.append(heard)
    answers = []
    try:
        for prompt, recorded in zip(PROMPTS, plain, strict=False):
            scripted.play(recorded.n_prompt, recorded.tokens)
            answers.append(
                parlay.generate(
                    prompt,
                    raw=True,
                    temperature=0,
                    max_tokens=len(recorded.tokens),
                    window=window,
                    draft="model",
                )
            )
    finally:
        engine.drafts.proposers["model"] = inner
        engine.listeners.remove(heard)
    engine.listeners.append(plainly)
    again = decode_plainly(parlay, len(plain[0].tokens), len(plain))
    engine.listeners.remove(plainly)
    row = _row(parlay, share, window, again, answers, heard.rounds)
    made = [told(r) for r in heard.rounds] if window is None else []
    return replace(row, states=_states(plainly.rounds[: len(again[0].tokens)]), rounds=made)


def _states(rounds: Sequence[Round]) -> States | None:
    """States are read out in as many passes of an answer as are not worth a switch."""
    passes = [1e3 * r.timing.verify_s for r in rounds]
    if len(passes) < 2 * N_WITH:
        return None
    without = median(passes[N_WITH + 4 :])
    return States(median(passes[2 : N_WITH - 1]), without, passes[N_WITH] - without)


def _row(
    parlay: Parlay,
    share: float,
    window: int | None,
    plain: Sequence[Answer],
    answers: Sequence[Answer],
    rounds: Sequence[Round],
) -> Row:
    rounds = [r for r in rounds if not r.reads_prompt]
    drafted = [r for r in rounds if r.n_drafted] or rounds
    seconds = median(r.timing.total_s for r in drafted)
    inside = median(r.timing.draft_s + r.timing.verify_s for r in drafted)
    return Row(
        share,
        window,
        sum(r.n_drafted > 0 for r in rounds) / len(rounds),
        mean(r.n_generated for r in drafted),
        1e3 * seconds,
        1e3 * inside,
        seconds / inside,
        _rate(answers) / _rate(plain),
        _promised(parlay, rounds) / _rate(plain),
        all(a.text == b.text for a, b in zip(answers, plain, strict=True)),
        None,
        [],
    )


def _rate(answers: Sequence[Answer]) -> float:
    return sum(len(a.tokens) - 1 for a in answers) / sum(a.decode_s for a in answers)


def _promised(parlay: Parlay, rounds: Sequence[Round]) -> float:
    """Tokens of these rounds by the second, as the prices have it."""
    prices = parlay.engine.prices
    assert prices is not None, "windows are chosen by prices here"
    n_context = int(median(r.n_context for r in rounds))
    curve, drafter = prices.curve(n_context, 1), prices.drafter
    seconds, before, settled, n_missing, position = 0.0, 0, False, 1, 0
    for r in rounds:
        if r.position <= position:  # another text: its prompt was read before
            before, n_missing = 0, 1
        changed, n_made = r.n_rows != before, r.n_drafted + r.n_dropped
        seconds += prices.pace * curve.of(r.n_rows, changed)
        seconds += 0.0 if changed or settled else prices.pace * curve.settling_s
        if prices.undoing.is_paid(r.n_drafted, r.n_accepted):
            seconds += prices.pace * prices.undoing.seconds
        if drafter is not None and n_made:
            seconds += drafter.draft_s(n_made, n_missing)
            n_missing = 0
        n_missing += r.n_generated
        before, settled, position = r.n_rows, not changed, r.position
    return sum(r.n_generated for r in rounds) / seconds


def main() -> None:
    args = _arguments()
    drafter = args.drafter or args.target.with_name(f"{args.target.stem}-block.gguf")
    if not drafter.exists():
        write_drafter(
            args.target, drafter, block_size=args.block, type_name=args.type, seed=args.seed
        )
    rows: list[Row] = []
    recurrent = read_facts(args.target).recurrent is not None
    with Parlay(
        args.target,
        draft=str(drafter),
        context_size=args.context,
        mode="faithful",
        measure_again=True,
        snapshots=args.block - 1 if recurrent else None,  # so that a whole block can be taken back
    ) as parlay:
        _never_pause(parlay)
        plain = decode_plainly(parlay, args.tokens, args.prompts)
        for share in args.right:
            for window in (args.block - 1, None):
                rows.append(measure(parlay, share, window, plain))
                print(f"{share:.0%}, window {window}: {rows[-1].speedup:.3f}", file=sys.stderr)
                _write(args, rows, parlay)
    _print(rows)


def _never_pause(parlay: Parlay) -> None:
    """A drafter that seldom pays would be given up, and is to be measured all the same."""
    parlay.engine.drafts.pause = None


def _write(args: argparse.Namespace, rows: Sequence[Row], parlay: Parlay) -> None:
    if args.json is not None:
        prices = parlay.engine.prices
        record = {
            "target": args.target.name,
            "block": args.block,
            "prices": None if prices is None else prices.to_dict(),
            "rows": [asdict(r) for r in rows],
        }
        args.json.write_text(json.dumps(record, indent=1))


def _print(rows: Sequence[Row]) -> None:
    print(
        "| right | window | tokens a round | round ms | over pass and block | speed-up | promised |"
    )
    print("|---|---|---|---|---|---|---|")
    for r in rows:
        window = "controller" if r.window is None else str(r.window)
        print(
            f"| {r.right:.0%} | {window} | {r.tokens_per_round:.2f} | {r.round_ms:.2f} |"
            f" {r.beside:.3f} | {r.speedup:.3f} | {r.promised:.3f} |"
        )
    found = [r.states for r in rows if r.states is not None]
    if found:
        read, left = (median(getattr(s, name) for s in found) for name in ("with_ms", "without_ms"))
        switch = median(s.switch_ms for s in found)
        print(
            f"a plain pass: {read:.2f} ms with states, {left:.2f} without; {switch:.2f} to switch"
        )


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--target", type=Path, required=True, help="a stand-in or any GGUF")
    parser.add_argument("--drafter", type=Path, help="default: written beside the target")
    parser.add_argument("--right", type=float, nargs="+", default=[0.6, 0.7, 0.8])
    parser.add_argument("--block", type=int, default=16)
    parser.add_argument("--type", choices=TYPES, default="q4_0")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where the record goes")
    return parser.parse_args()


if __name__ == "__main__":
    main()
