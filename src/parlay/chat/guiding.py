"""Which constraint a request needs: a grammar, calls that hold once begun, an end of thinking.

Knows styles and grammars; builds constraints and follows none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from parlay.ask import Remark, ToolFunction
from parlay.chat.call_grammar import CallGrammar
from parlay.chat.style import Style
from parlay.decoding.constraint import Constraint
from parlay.engine.structured.grammar import Grammars
from parlay.engine.structured.guide import Guide, Rules
from parlay.errors import BadRequest
from parlay.llama.vocabulary import Vocabulary

_HARMONY_FAREWELL = "<|end|><|start|>assistant<|channel|>final<|message|>"
_FINAL = "<|channel|>final<|message|>"


@dataclass(frozen=True, slots=True)
class Wish:
    """What an answer must keep to."""

    grammar: str | None = None  # of all that is said
    functions: tuple[ToolFunction, ...] = ()
    forced: bool = False  # a call, and nothing else
    many: bool = True  # several calls in one answer
    budget: int | None = None
    thinking: bool = False  # the prompt's end opened the thinking


class Guiding:
    """Makes constraints for one model."""

    def __init__(self, style: Style, vocabulary: Vocabulary, grammars: Grammars) -> None:
        self._style = style
        self._vocabulary = vocabulary
        self._grammars = grammars

    def usable(
        self, functions: Sequence[ToolFunction], forced: bool
    ) -> tuple[tuple[ToolFunction, ...], tuple[Remark, ...]]:
        """Functions whose schemas can be followed; others are refused, or take any object."""
        if not forced and not self._grammars.available:
            return tuple(functions), ()
        found, told = [], []
        for function in functions:
            try:
                self._grammars.json_schema(dict(function.parameters) or {"type": "object"})
                found.append(function)
            except BadRequest as error:
                if forced or function.strict:
                    raise BadRequest(f"tools: {function.name}: {error.message}") from None
                found.append(ToolFunction(function.name))
                message = f"{function.name}: any arguments are allowed: {error.message}"
                told.append(Remark("tools", message[:300]))
        return tuple(found), tuple(told)

    def beside(self, wish: Wish) -> tuple[Remark, ...]:
        """What is said where the whole answer has a form, and functions are given too."""
        if wish.grammar is None or wish.forced or not wish.functions:
            return ()
        message = (
            "the answer keeps to the form that came with it (response_format, json_schema or"
            " grammar): a tool is called only where that lets it, and unguided; send one of the two"
        )
        return (Remark("tools", message),)

    def constraints(self, wish: Wish) -> Callable[[], Constraint | None]:
        """Checked now; one constraint for each answer when called."""
        calls = self._calls(wish) if wish.functions else None
        grammar = wish.grammar
        if calls is not None and wish.forced:
            grammar = self._grammars.lark(calls.forced())
        waits = calls is not None and not wish.forced and self._grammars.available
        if waits or wish.budget is not None or (grammar is not None and self._thinks(wish)):
            rules = self._rules(wish, grammar, calls if waits else None)
            return lambda: Guide(rules, thinking=wish.thinking)
        return lambda: None if grammar is None else self._grammars.constraint(grammar)

    def _thinks(self, wish: Wish) -> bool:
        """Whether something comes before what has a form."""
        return wish.thinking or (self._channels and not wish.forced)

    @property
    def _channels(self) -> bool:
        return self._style.form.kind == "channels"

    def _rules(self, wish: Wish, grammar: str | None, calls: CallGrammar | None) -> Rules:
        triggers = [] if calls is None or grammar is not None else self._triggers(calls)
        if self._channels and grammar is not None and not wish.forced:
            triggers, grammar = [(_FINAL.encode(), grammar)], None
        return Rules(
            vocabulary=self._vocabulary,
            grammars=self._grammars,
            shown=self._style.shown(tools=bool(wish.functions)),
            marks=self._style.marks,
            budget=wish.budget,
            farewell=self._farewell() if wish.budget is not None else (),
            afterwards=grammar,
            triggers=tuple(t for t in triggers if not t[0].startswith(b"{")),
            first_words=tuple(t for t in triggers if t[0].startswith(b"{")),
            once=not wish.many,
        )

    def _calls(self, wish: Wish) -> CallGrammar:
        exact = wish.forced or any(function.strict for function in wish.functions)
        style = self._style
        return CallGrammar(
            form=style.form,
            functions=wish.functions,
            control=style.control,
            exact=exact,
            many=wish.many,
        )

    def _triggers(self, calls: CallGrammar) -> list[tuple[bytes, str]]:
        return [
            (mark.encode(), self._grammars.lark(calls.after(mark))) for mark in calls.triggers()
        ]

    def _farewell(self) -> tuple[int, ...]:
        text = _HARMONY_FAREWELL if self._channels else self._style.marks.close
        return tuple(self._vocabulary.tokenize(text, bos=False))
