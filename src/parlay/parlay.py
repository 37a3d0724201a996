"""Parlay in five lines: load a target, ask it, see what speculation did.

The Python interface. Knows chat messages and text; all else is the engine's.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from parlay.ask import Accepted, Ask, Form, Pieces, Samplers, Speculation, ToolFunction
from parlay.chat.deltas import Delta, Said
from parlay.chat.parser import AnswerParser, RawText
from parlay.chat.prompter import Prompter
from parlay.chat.style import Template
from parlay.engine.answer import Answer
from parlay.engine.engine import Engine
from parlay.engine.sequence import Piece, Sequence
from parlay.engine.settings import AnswerSettings, LoadSettings, by_keywords, options_of
from parlay.engine.start import FREE_PROPOSERS, fitted
from parlay.errors import BadRequest
from parlay.hub.resolving import resolve_drafter, resolve_model
from parlay.option_types import check_option, texts
from parlay.pairing.heads import find_head
from parlay.pairing.records import find_drafter
from parlay.routing import parse_draft

Message = Mapping[str, Any]

log = logging.getLogger("parlay")
chosen = logging.getLogger("parlay.chosen")


class Stream:
    """Pieces of an answer as they come; `answer` once they have all come."""

    def __init__(
        self, accepted: Accepted, parser: Callable[[], AnswerParser | RawText], whole: bool
    ) -> None:
        """`parser`: makes one of the answer's text. `whole`: nobody looks before the end, so nobody
        is woken: on a CPU whose cores all compute, each wake-up takes one of them away from the
        pass."""
        self.accepted = accepted
        self._parser = parser
        self._whole = whole
        self._held: list[Piece] = []
        self._inbox: queue.SimpleQueue[list[Piece]] = queue.SimpleQueue()
        self._pieces: list[Piece] = []
        self.sequence: Sequence | None = None

    def _take(self, seq: Sequence, pieces: Seq[Piece]) -> None:
        self._held.extend(pieces)
        if seq.retired or not self._whole:
            self._inbox.put(self._held)
            self._held = []

    def __iter__(self) -> Iterator[Piece]:
        """Yield every piece; leaving the loop early cancels the answer."""
        seq = self.sequence
        assert seq is not None
        try:
            # Done is said before the last pieces are sent; retired is said after them.
            while not (seq.retired and self._inbox.empty()):
                for piece in self._inbox.get():
                    self._pieces.append(piece)
                    yield piece
        finally:
            seq.cancelled = True
        if seq.error is not None:
            raise seq.error

    def told(self) -> Iterator[tuple[Delta, Piece | None]]:
        """The same, read: what is said, thought or called, and the piece that made it certain; what
        was held back to the end has none."""
        parser = self._parser()
        for piece in self:
            for delta in parser.push(Pieces(0, (piece.text,), 1)):
                yield delta, piece
        for delta in parser.finish():
            yield delta, None

    @cached_property
    def answer(self) -> Answer:
        """The whole answer; waits for it if need be."""
        seq = self.sequence
        assert seq is not None
        if not seq.retired or not self._inbox.empty():
            for _piece in self:
                pass
        told = Answer.of(seq, self._pieces, self.accepted.mode)
        return replace(told, message=self.message)

    @property
    def message(self) -> dict[str, Any]:
        """What was said so far as an assistant's message, thinking and calls apart."""
        texts, said, parser = tuple(piece.text for piece in self._pieces), Said(), self._parser()
        said.add([*parser.push(Pieces(0, texts, len(texts))), *parser.finish()])
        return said.message()


class Parlay:
    """A target with its drafters, ready to answer.

    `draft`: auto, none, suffix, default or default-block (the drafters that are
    shipped for the default model), a drafter's path, or several with commas between. auto:
    suffix, and the drafter that the manifest of pairs has for this target. `window`:
    None lets the controller choose, round by round, by measured time; it may choose not to
    speculate.
    `remember_tokens`: suffix also drafts what earlier answers said, up to so many tokens.
    `prompt_cache_mb`: RAM for what was read before. `snapshots`: tokens of a draft that a
    recurrent target takes back without a copy; None: by price and room.
    `promise`: who is not slower than plain decoding among several answers: their `sum`, or `each`.
    `follow_load`: on a CPU, fewer threads or sleeping ones where other work takes the cores.
    `tensor_overrides`: PATTERN=DEVICE each; `lora`: FILE or FILE:SCALE each; `n_cpu_moe`:
    layers whose experts stay in RAM, -1 for all. `rope`: how positions are stretched.
    `context_size="auto"`: the longest that memory holds, up to the model's own;
    `gpu_layers="auto"`: as many as fit, a mixture's experts leaving the GPU first.
    `progress` is told what is measured at the first start; `measure_again` does so anew.
    """

    @by_keywords(LoadSettings)
    def __init__(self, given: LoadSettings) -> None:
        path = resolve_model(str(given.target))
        draft = known_draft(path) if given.draft == "auto" else named_draft(given.draft)
        self.engine = Engine(fitted(given, path, draft), progress=given.progress)
        model = self.engine.model
        self.template: Template | None = model.chat_template()
        self.prompter = Prompter(
            model.vocabulary,
            self.template,
            mode=self.engine.mode,
            context_size=self.engine.target.context_size,
            recommended=model.facts.temperature,
        )

    def generate(self, prompt: str | Seq[Message], **options: Any) -> Answer:
        """The whole answer to a prompt or a conversation. Options as for `stream`."""
        return self._start(prompt, whole=True, **options).answer

    def stream(self, prompt: str | Seq[Message], **options: Any) -> Stream:
        """Start an answer and yield its pieces as they come.

        Options: `max_tokens`, `stop`, `draft` (loaded proposers, or none), `window`, `mode`,
        `context_full`, `logprobs`, `raw` (the prompt goes in as it is, without the
        chat template), `tools`, `json_schema` (a schema the answer obeys), `grammar` (GBNF),
        `prediction` (the answer that is expected: drafted from, never
        believed), and the fields of `Sampling`.
        """
        return self._start(prompt, whole=False, **options)

    def _start(self, prompt: str | Seq[Message], *, whole: bool, **options: Any) -> Stream:
        given, drawn = options_of(options)
        ask = self._ask(prompt, given, drawn)
        made = self.prompter.prepare(ask)
        told, facts = made.accepted, self.prompter.facts((), 1)
        parser: Callable[[], AnswerParser | RawText] = RawText
        if ask.messages is not None:
            parser = partial(AnswerParser, facts, told.functions, thinking=told.thinking)
        stream = Stream(told, parser, whole)
        stream.sequence = self.engine.submit(made.requests[0], stream._take)
        return stream

    def _ask(self, prompt: str | Seq[Message], given: AnswerSettings, drawn: dict[str, Any]) -> Ask:
        """What is asked for, as every door says it."""
        if given.json_schema is not None and given.grammar is not None:
            raise BadRequest("give one of json_schema and grammar, not both")
        form = None
        if given.json_schema is not None:
            form = Form(json_schema=dict(given.json_schema))
        elif given.grammar is not None:
            form = Form(gbnf=given.grammar)
        seed = drawn.pop("seed", 0)
        return Ask(
            **self._given(prompt, raw=given.raw),
            tools=tuple(map(_function, given.tools or ())),
            form=form,
            samplers=Samplers(**drawn),
            seed=seed,
            stop=texts(given.stop),
            max_tokens=given.max_tokens,
            logprobs=given.logprobs,
            prediction=given.prediction or "",
            context_full=given.context_full,
            speculation=Speculation(draft=given.draft, window=given.window, mode=given.mode),
        )

    def _given(self, prompt: str | Seq[Message], *, raw: bool) -> dict[str, Any]:
        """A conversation, or a text that goes in as it is."""
        check_option("prompt", prompt, str | Seq[Message])
        if isinstance(prompt, str) and (raw or self.template is None):
            return {"door": "completions", "prompts": (prompt,)}
        if self.template is None:
            raise BadRequest("this model has no chat template; give the prompt as one text")
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return {"door": "chat", "messages": tuple(dict(message) for message in messages)}

    def tokens(
        self, prompt: str | Seq[Message], *, raw: bool = False, tools: Seq[Message] = ()
    ) -> list[int]:
        """What the target reads: the prompt through its chat template, or as it is."""
        ask = Ask(**self._given(prompt, raw=raw), tools=tuple(map(_function, tools)))
        return list(self.prompter.prompts(ask)[0].tokens)

    def close(self) -> None:
        """Free the models."""
        self.engine.close()

    def __enter__(self) -> Parlay:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def known_draft(target: Path) -> tuple[str, ...]:
    """What drafts for a target beside the suffix proposer: the manifest's pair, which somebody
    measured; else a head in the target's file or beside it. Told in a line."""
    if not target.is_file():
        return ("suffix",)
    pair = find_drafter(target)
    if pair is not None:
        for warning in pair.warnings:
            log.warning(warning)
        if pair.draft in FREE_PROPOSERS:
            return tuple(dict.fromkeys(("suffix", pair.draft)))
        chosen.info(f"draft: suffix, and {Path(pair.draft).name} by the manifest of pairs")
        return "suffix", pair.draft
    head = find_head(target)
    if head is None:
        return ("suffix",)
    chosen.info(f"draft: suffix, and {head.why}")
    return "suffix", str(head.path)


def named_draft(text: str) -> tuple[str, ...]:
    """What is to be loaded: names of proposers, and files by their paths."""
    # Where nothing is known of the target yet, auto is what is always there.
    names = ("suffix" if name == "auto" else name for name in parse_draft(text))
    return tuple(n if n in FREE_PROPOSERS else str(resolve_drafter(n)) for n in names)


def _function(tool: Message) -> ToolFunction:
    """A tool as OpenAI's clients write it."""
    known = tool.get("function")
    if not isinstance(known, Mapping) or not isinstance(known.get("name"), str):
        raise BadRequest('a tool is {"type": "function", "function": {"name": ..., ...}}')
    parameters, strict = dict(known.get("parameters") or {}), bool(known.get("strict"))
    return ToolFunction(known["name"], parameters, known.get("description"), strict=strict)
