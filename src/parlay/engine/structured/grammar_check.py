"""Reads a grammar in a process of its own: one that never ends or breaks the reader ends alone.

Run as `python -m parlay.engine.structured.grammar_check KIND`, the grammar on stdin; what
llguidance makes of it comes out. Knows no vocabulary and no server.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from typing import Any

from parlay.engine.structured.constraint import DEAD_END
from parlay.errors import BadRequest

LIMIT_S = 10.0
_AT_ONCE = threading.Semaphore(2)
_MOST_SYMBOLS = 20_000  # to begin with as many takes half a second; with twice as many, four times
# Ways to go on at one place: what each costs grows with their number. A schema has them by its
# properties, whatever the text, and may need four each; a written grammar needs one each. But if
# that one is ambiguous, their number grows with the text, and the time with its square.
_FEW_WAYS, _MOST_WAYS, _MOST_WRITTEN = 250, 2000, 500
_CHARACTERS_A_WAY, _WRITTEN_A_WAY = 4, 64
_SCHEMAS = re.compile(r"^\w+(?:\[.*\])?: %json (.*)$", re.MULTILINE)  # in a grammar for tool calls
# Less than other threads have: what is read within it can be read there too.
_STACK = 3 << 20


def read_apart(kind: str, text: str) -> str:
    """The grammar in llguidance's own form."""
    # Without what Python itself has to say: that would be a part of the answer.
    this = "parlay.engine.structured.grammar_check"
    command = [sys.executable, "-W", "ignore", "-m", this, kind]
    with _AT_ONCE:
        try:
            done = subprocess.run(
                command, input=text.encode(), capture_output=True, timeout=LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise BadRequest(f"the grammar takes over {LIMIT_S:g} s to read; simplify it") from None
    if done.returncode == 1:
        raise BadRequest(done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2])
    if done.returncode != 0:
        raise BadRequest("the grammar is nested too deeply to be read; simplify it")
    return done.stdout.decode()


def read_here(kind: str, text: str) -> str:
    """The same in this process, for grammars too small to do harm."""
    from llguidance import LLMatcher, grammar_from

    try:
        grammar = str(grammar_from(kind, text))
    except (ValueError, RecursionError, IndexError) as error:
        raise BadRequest(f"the grammar cannot be read: {one_line(str(error))}") from None
    problem = LLMatcher.validate_grammar(grammar, limits=limits_of(grammar))
    if problem and not problem.startswith("WARNING"):
        raise BadRequest(f"the grammar cannot be used: {one_line(problem)}")
    _begin(grammar)
    return grammar


def limits_of(grammar: str) -> Any:
    """How much llguidance may spend on a grammar before it gives up."""
    from llguidance import LLParserLimits

    schemas = [grammar] if grammar.startswith("{") else _SCHEMAS.findall(grammar)
    n_schemas = sum(map(len, schemas))
    n_written = min(_MOST_WRITTEN, _FEW_WAYS + (len(grammar) - n_schemas) // _WRITTEN_A_WAY)
    n_ways = min(_MOST_WAYS, n_written + n_schemas // _CHARACTERS_A_WAY)
    return LLParserLimits(max_items_in_row=n_ways, max_grammar_size=_MOST_SYMBOLS)


def _begin(grammar: str) -> None:
    """Some can be read, and no text obeys them: rules that only name each other."""
    from llguidance import LLMatcher, LLTokenizer

    limits = limits_of(grammar)
    matcher = LLMatcher(LLTokenizer("byte"), grammar, log_level=0, limits=limits)
    matcher.compute_bitmask()
    if str(matcher.get_error()).startswith(DEAD_END):
        raise BadRequest("the grammar allows no text at all: its rules never reach one")


def one_line(text: str) -> str:
    return " ".join(text.split())[:300]


def _try(kind: str) -> None:
    """Read and begin it, as the server will."""
    try:
        sys.stdout.write(read_here(kind, sys.stdin.read()))
    except BadRequest as error:
        failed.append(error)


failed: list[BadRequest] = []

if __name__ == "__main__":
    threading.stack_size(_STACK)
    reading = threading.Thread(target=_try, args=(sys.argv[1],))
    reading.start()
    reading.join()
    if failed:
        sys.exit(failed[0].message)
