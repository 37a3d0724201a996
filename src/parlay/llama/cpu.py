"""What this build of llama.cpp can do on this processor.

Knows nothing of models; one string of llama.cpp's is all it reads.
"""

from __future__ import annotations

import functools
import re

from parlay.llama import engines, library
from parlay.llama.library import C

_FEATURE = re.compile(r"(\w+) = (\d+)")
# Matrices of these types are kept a second time, rearranged for the processor's wide registers.
_REPACKED_X86 = frozenset({"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"})
_REPACKED_ARM = frozenset({"Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL", "MXFP4"})


@functools.cache
def features() -> frozenset[str]:
    """Names such as AVX2, NEON, OPENMP, REPACK that are compiled in and there."""
    library.start()
    raw: bytes = C.llama_print_system_info()
    return frozenset(name for name, value in _FEATURE.findall(raw.decode()) if value != "0")


def may_rearrange() -> bool:
    """Whether weights may be kept rearranged for the processor. Not with kernels for AMX: before
    they begin they load a record that compilers optimise away, and the process ends there. They
    read rearranged weights alone."""
    return "AMX_INT8" not in features()


def leaves_avx512() -> bool:
    """Whether the processor has registers of 512 bits that this engine's kernels do not use."""
    return "avx512f" in engines.cpu_flags() and "AVX512" not in features()


def repacked_types() -> frozenset[str]:
    """Tensor types of which the CPU keeps a rearranged copy."""
    here = features()
    if "REPACK" not in here or not may_rearrange():
        return frozenset()
    if "NEON" in here:
        return _REPACKED_ARM
    if "AVX2" not in here:
        return frozenset()
    return _REPACKED_X86 | ({"Q2_K"} if "AVX512" in here else set())
