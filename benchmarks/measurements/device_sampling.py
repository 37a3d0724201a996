"""A draft model's token and runner-up, found on its device or on the host: are they the same, and
what does a token take?

`host`: the whole row of logits is copied, and read by numpy, as the runtime does. `device`: a
sampler of llama.cpp (top-k of 2) is part of the pass, and two ids and two logits are copied. Both
draft the same text, one token a pass, in turns. Where the device cannot do it, llama.cpp copies the
whole row all the same: `on_device` says so. No grammar, no seed: those need whole rows.

python -m benchmarks.measurements.device_sampling --drafter smollm2-q8_0.gguf --json out.json
python -m benchmarks.measurements.device_sampling --tokens 64 --repeats 3
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.shared.arguments import parsed, parser_of
from benchmarks.shared.record import keep
from parlay.decoding.sampling import likeliest
from parlay.decoding.span import Span
from parlay.errors import LoadError
from parlay.hub.resolving import resolve_model
from parlay.llama.context import Context
from parlay.llama.library import C
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.models import SHIPPED_DRAFTERS

Best = tuple[int, float, float]  # a token, its logit and the runner-up's
PROMPT = 64  # tokens


@dataclass(frozen=True, slots=True)
class Found:
    """Medians, in microseconds of one drafted token."""

    n_tokens: int
    on_device: bool  # whether the device chose
    same_tokens: int
    largest_difference: float  # of a token's lead over the runner-up
    host_us: float
    device_us: float
    attach_ms: float  # what it takes to begin with it: the graph is planned anew
    detach_ms: float

    def __str__(self) -> str:
        where = "on the device" if self.on_device else "on the host: the device cannot"
        return (
            f"chosen {where}; {self.same_tokens} of {self.n_tokens} tokens are the same, leads"
            f" differ by {self.largest_difference:.2g} at most\n{self.host_us:.0f} us a token with"
            f" whole rows, {self.device_us:.0f} with two logits; to begin with it takes"
            f" {self.attach_ms:.2f} ms, to end it {self.detach_ms:.2f}"
        )


def host_best(context: Context, span: Span) -> Best:
    """By numpy, of a whole row."""
    row = context.decode([span])[0][0]
    token = likeliest(row)
    own = row.item(token)
    row[token] = float("-inf")
    return token, own, row.item(row.argmax())


def device_best(context: Context, span: Span) -> Best:
    """By the sampler. The two come in any order; of equals the first token is taken, as numpy
    does."""
    context.start([span])
    context.settle()
    handle = context._handle
    n = C.llama_get_sampled_logits_count_ith(handle, -1)
    logits = C.llama_get_sampled_logits_ith(handle, -1)[:n]
    if n > 2:  # llama.cpp fell back to the host
        second, first = sorted(range(n), key=lambda i: (logits[i], -i))[-2:]
        return first, logits[first], logits[second]
    ids = C.llama_get_sampled_candidates_ith(handle, -1)[:n]
    (own, token), (other, _) = sorted(zip(logits, ids, strict=True), key=lambda b: (-b[0], b[1]))
    return token, own, other


def drafted(
    context: Context, tokens: Sequence[int], n: int, best: Callable[[Context, Span], Best]
) -> tuple[list[Best], list[float]]:
    """A draft of n tokens, and the seconds that each took."""
    context.clear(0)
    found, seconds = [best(context, Span(0, 0, list(tokens), 1))], list[float]()
    while len(found) < n:
        began = time.perf_counter()
        span = Span(0, len(tokens) + len(found) - 1, [found[-1][0]], 1)
        found.append(best(context, span))
        seconds.append(time.perf_counter() - began)
    return found, seconds


class Sampler:
    """The two likeliest tokens, as a part of every pass over the first sequence."""

    def __init__(self, context: Context) -> None:
        self._handle = context._handle
        self._chain: int | None = None

    def attach(self) -> None:
        """With a chain of its own: llama.cpp takes none twice."""
        self._chain = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
        C.llama_sampler_chain_add(self._chain, C.llama_sampler_init_top_k(2))
        if not C.llama_set_sampler(self._handle, 0, self._chain):
            raise LoadError("llama.cpp takes no sampler here; split it by layers, or not at all")

    def detach(self) -> None:
        C.llama_set_sampler(self._handle, 0, None)
        C.llama_sampler_free(self._chain)


def measure(context: Context, n_tokens: int, repeats: int) -> Found:
    """The same draft both ways, in turns; the first turn warms up."""
    tokens, sampler = context.sample[:PROMPT], Sampler(context)
    host_s, device_s, attach_s, detach_s = (list[float]() for _ in range(4))
    for turn in range(1 + repeats):
        by_host, on_host = drafted(context, tokens, n_tokens, host_best)
        sampler.attach()
        by_device, on_device = drafted(context, tokens, n_tokens, device_best)
        chosen = int(C.llama_get_sampled_logits_count_ith(context._handle, -1)) == 2
        sampler.detach()
        context.clear(0)
        if turn:
            host_s += on_host
            device_s += on_device
        attach_s.append(_planned_s(context, sampler.attach))
        detach_s.append(_planned_s(context, sampler.detach))
    pairs = list(zip(by_host, by_device, strict=True))
    host_us, device_us = (1e6 * statistics.median(each) for each in (host_s, device_s))
    return Found(
        n_tokens,
        chosen,
        sum(a[0] == b[0] for a, b in pairs),
        max(abs((a[1] - a[2]) - (b[1] - b[2])) for a, b in pairs),
        host_us,
        device_us,
        1e3 * statistics.median(attach_s),
        1e3 * statistics.median(detach_s),
    )


def _planned_s(context: Context, change: Callable[[], None]) -> float:
    """What a change and the pass after it take, less another such pass."""
    times = []
    for act in (change, lambda: None):
        context.clear(0)
        began = time.perf_counter()
        act()
        context.start([Span(0, 0, [0], 1)])
        context.settle()
        times.append(time.perf_counter() - began)
    return times[0] - times[1]


def main(argv: Sequence[str] | None = None) -> None:
    args = _arguments(argv)
    path = SHIPPED_DRAFTERS.get(args.drafter) or resolve_model(args.drafter)
    model = Model(Path(path), ModelSettings())
    settings = ContextSettings(
        context_size=PROMPT + args.tokens, n_batch=PROMPT, n_outputs=1, threads=args.threads
    )
    context = Context(model, settings)
    found = measure(context, args.tokens, args.repeats)
    context.close()
    model.close()
    print(found)
    keep(args.json, found)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--drafter", default="default", help="a GGUF file, or a shipped one")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    return parsed(parser, argv)


if __name__ == "__main__":
    main()
