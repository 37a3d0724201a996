"""Which kernels a context computes attention with on a CPU: ggml's usual ones, or its plain one.

Usually single tokens past 512 cells have a kernel of their own, and prompts have another: faster,
and each rounds in its own way. The plain one (ggml's reference) takes all passes alike. Knows
nothing of passes.
"""

from __future__ import annotations

from parlay.llama.backends import calls, can_find, cpu_backends

PROMPT_ROWS = 64  # of a pass, from which on prompts have a kernel of their own


class Kernels:
    """The choice of one context, for all passes until it is changed; first the usual ones."""

    def __init__(self, handle: int) -> None:
        known = calls()
        assert known is not None, "ask `can_choose` first"
        self._use_plain = known["use_plain"]
        self._cpus = cpu_backends(handle)
        self._plain = False

    def choose(self, *, plain: bool) -> None:
        """From the next pass on."""
        if plain != self._plain:
            self._plain = plain
            for backend in self._cpus:
                self._use_plain(backend, plain)


def can_choose() -> bool:
    """Whether this build lets kernels be chosen."""
    return can_find()
