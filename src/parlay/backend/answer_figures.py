"""What one answer took and won, as it is told: `speculation`, llama.cpp's `timings`, tokens.

Plain arithmetic over counts and times; knows neither HTTP nor models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq
from time import perf_counter
from typing import Any

from parlay.ask import Figures
from parlay.backend.plain_speed import PlainSpeed
from parlay.decoding.counts import Counts
from parlay.engine.answer import exact_reason
from parlay.engine.request import Mode
from parlay.engine.sequence import Sequence
from parlay.proposers.prediction import PREDICTION


def merged(parts: Seq[Counts]) -> Counts:
    """The counts of several sequences as one."""
    total = Counts()
    for part in parts:
        for name, value in vars(part).items():
            own = getattr(total, name)
            if isinstance(own, Counter):
                own.update(value)
            elif isinstance(own, dict):
                for key, seconds in value.items():
                    own[key] += seconds
            else:
                setattr(total, name, own + value)
    return total


def _end(seq: Sequence) -> float:
    """When it ended; of a client that leaves the worker has not heard yet, and it ends now."""
    return perf_counter() if seq.ended is None else seq.ended


def queue_s(seq: Sequence) -> float:
    """From the request's arrival until it had a slot."""
    return (seq.started if seq.seq_id >= 0 else _end(seq)) - seq.submitted


def ttft_s(seq: Sequence) -> float:
    """From the request's arrival to its first token, the queue included."""
    return (seq.first_token or _end(seq)) - seq.submitted


def e2e_s(seq: Sequence) -> float:
    return _end(seq) - seq.submitted


def prompt_s(seq: Sequence) -> float:
    """From when it had a slot to its first token."""
    return max(0.0, ttft_s(seq) - queue_s(seq))


def decode_s(seq: Sequence) -> float:
    end = _end(seq)
    return end - (seq.first_token or end)


def figures(
    seqs: Seq[Sequence], mode: Mode, policy: str, baseline: PlainSpeed, n_each: int = 1
) -> Figures:
    """Of the sequences of one request; a prompt counts once for its `n_each` answers."""
    prompts = seqs[::n_each]
    n_accepted = sum(seq.counts.accepted_by[PREDICTION] for seq in seqs)
    n_drafted = sum(seq.counts.drafted_by[PREDICTION] for seq in seqs)
    begun = [seq for seq in seqs if seq.first_token is not None]
    return Figures(
        n_prompt=sum(len(seq.request.prompt) for seq in prompts),
        n_cached=sum(seq.n_reused for seq in prompts),
        n_generated=sum(seq.n_generated for seq in seqs),
        n_prediction_accepted=n_accepted,
        n_prediction_rejected=n_drafted - n_accepted,
        queue_s=max(0.0, queue_s(seqs[0])),
        ttft_s=ttft_s(begun[0]) if begun else None,
        e2e_s=max(e2e_s(seq) for seq in seqs),
        speculation=speculation(seqs, mode, policy, baseline),
        timings=timings(seqs),
    )


def speculation(
    seqs: Seq[Sequence], mode: Mode, policy: str, baseline: PlainSpeed
) -> dict[str, Any]:
    """The response's `speculation` field."""
    counts = merged([seq.counts for seq in seqs])
    speedup = baseline.speedup(counts) if counts.n_drafted else None  # else there was no bet
    single = baseline.of(1)
    return {
        "mode": mode,
        "exact": mode == "exact" and all(seq.exact for seq in seqs),
        "exact_class": seqs[0].exact_class,
        "exact_reason": exact_reason(seqs, mode),
        "exact_cost_percent": seqs[0].exact_cost_percent,
        "policy": policy,
        **counts.as_dict(),
        "fallback_ms": {why.value: _ms(s) for why, s in counts.fallback_s.items()},
        "queue_ms": _ms(max(queue_s(seq) for seq in seqs)),
        "ttft_ms": _ms(max(ttft_s(seq) for seq in seqs)),
        "e2e_ms": _ms(max(e2e_s(seq) for seq in seqs)),
        "speedup": None if speedup is None else round(speedup, 4),
        "baseline_ms_per_token": None if single is None else _ms(single),
    }


def timings(seqs: Seq[Sequence]) -> dict[str, Any]:
    """The response's `timings`, with llama.cpp's names.

    The time of decoding begins when the first tokens have come, so they are not in its speed.
    """
    n_cached = sum(seq.n_reused for seq in seqs)
    n_prompt = sum(len(seq.request.prompt) for seq in seqs) - n_cached
    read_s = max(prompt_s(seq) for seq in seqs)
    n_predicted = sum(seq.n_generated for seq in seqs)
    n_first = sum(seq.n_first for seq in seqs)
    n_timed = n_predicted - n_first
    predicted_s = max(decode_s(seq) for seq in seqs)
    return {
        "cache_n": n_cached,
        "prompt_n": n_prompt,
        "prompt_ms": _ms(read_s),
        "prompt_per_token_ms": _ms(_over(read_s, n_prompt)),
        "prompt_per_second": round(_over(n_prompt, read_s), 3),
        "predicted_n": n_predicted,
        "first_n": n_first,
        "predicted_ms": _ms(predicted_s),
        "predicted_per_token_ms": _ms(_over(predicted_s, n_timed)),
        "predicted_per_second": round(_over(n_timed, predicted_s), 3),
        "draft_n": sum(seq.counts.n_drafted for seq in seqs),
        "draft_n_accepted": sum(seq.counts.n_accepted for seq in seqs),
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def _over(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
