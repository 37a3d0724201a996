"""Parlay in five lines: load a target, ask it, see what speculation did.

The Python interface. Knows chat messages and text; all else is the engine's.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path
from typing import Any

from parlay.chat.model_text import Template, Vocabulary
from parlay.decoding.constraint import Constraint
from parlay.decoding.reasoning import OPEN
from parlay.engine.answer import Answer
from parlay.engine.answer_settings import options_of
from parlay.engine.engine import Engine
from parlay.engine.request import Mode, Request
from parlay.engine.sequence import Piece, Sequence
from parlay.engine.start import FREE_PROPOSERS
from parlay.engine.startup.load_settings import LoadSettings, by_keywords
from parlay.engine.structured.grammar import Grammars
from parlay.engine.structured.guide import Guide, Rules
from parlay.errors import BadRequest
from parlay.hub.resolving import resolve_drafter, resolve_model
from parlay.option_types import check_option, texts
from parlay.pairing.heads import find_head
from parlay.pairing.records import find_drafter

Message = Mapping[str, Any]

log = logging.getLogger("parlay")
chosen = logging.getLogger("parlay.chosen")
_THINK_TOKENS = 8  # the mark that opens the thinking, should it be no token of its own


class Stream:
    """Pieces of an answer as they come; `answer` once they have all come."""

    def __init__(self, mode: Mode, whole: bool) -> None:
        """`whole`: nobody looks before the end, so nobody is woken: on a CPU whose cores all
        compute, each wake-up takes one of them away from the pass."""
        self._mode = mode
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

    @property
    def answer(self) -> Answer:
        """The whole answer; waits for it if need be."""
        seq = self.sequence
        assert seq is not None
        if not seq.retired or not self._inbox.empty():
            for _piece in self:
                pass
        return Answer.of(seq, self._pieces, self._mode)


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
        self.engine = Engine(given.engine(path, draft), progress=given.progress)
        self.template: Template | None = self.engine.model.chat_template()
        self._vocabulary: Vocabulary = self.engine.model.vocabulary
        self._grammars = Grammars(self.engine.model.vocabulary)

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

    def _expected(self, prediction: str) -> tuple[int, ...]:
        """The tokens of a prediction, as far as the context holds them."""
        tokens = self._vocabulary.continuation(prediction) if prediction else []
        return tuple(tokens[: self.engine.target.context_size])

    def _start(self, prompt: str | Seq[Message], *, whole: bool, **options: Any) -> Stream:
        given, sampling = options_of(options)
        tokens = self.tokens(prompt, raw=given.raw, tools=given.tools or ())
        plain = given.raw or self.template is None
        request = Request(
            prompt=tuple(tokens),
            thinking=None if plain else self._opens_thinking(tokens),
            max_tokens=given.max_tokens,
            sampling=sampling,
            stop=texts(given.stop),
            proposers=None if given.draft is None else parse_draft(given.draft),
            window=given.window,
            mode=given.mode,
            expected=self._expected(given.prediction or ""),
            context_full=given.context_full,
            logprobs=given.logprobs,
        )
        constraint = self._constraint(given.json_schema, given.grammar, bool(request.thinking))
        stream = Stream(given.mode or self.engine.mode, whole)
        stream.sequence = self.engine.submit(replace(request, constraint=constraint), stream._take)
        return stream

    def _constraint(
        self, json_schema: Mapping[str, Any] | None, grammar: str | None, thinking: bool
    ) -> Constraint | None:
        """What the answer must keep to; thinking comes before it."""
        if json_schema is None and grammar is None:
            return None
        if json_schema is not None and grammar is not None:
            raise BadRequest("give one of json_schema and grammar, not both")
        made = self._grammars
        if json_schema is not None:
            held = made.json_schema(dict(json_schema))
        else:
            held = made.gbnf(grammar or "")
        if not thinking:
            return made.constraint(held)
        rules = Rules(self.engine.model.vocabulary, made, frozenset(), afterwards=held)
        return Guide(rules, thinking=True)

    def _opens_thinking(self, tokens: list[int]) -> bool:
        """Whether the template's last words let the answer begin inside its thinking."""
        end = self._vocabulary.detokenize(tokens[-_THINK_TOKENS:])
        return end.rstrip().endswith(OPEN)

    def tokens(
        self, prompt: str | Seq[Message], *, raw: bool = False, tools: Seq[Message] = ()
    ) -> list[int]:
        """What the target reads: the prompt through its chat template, or as it is."""
        check_option("prompt", prompt, str | Seq[Message])
        vocabulary = self._vocabulary
        if isinstance(prompt, str) and (raw or self.template is None):
            return vocabulary.tokenize(prompt)
        if self.template is None:
            raise BadRequest("this model has no chat template; give the prompt as one text")
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        tokens = vocabulary.tokenize(self.template.render(messages, tools=tools or None))
        # Most templates write the beginning-of-text mark themselves; it must not come twice.
        return tokens[1:] if tokens[:2] == [vocabulary.bos] * 2 else tokens

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


def parse_draft(text: str) -> tuple[str, ...]:
    """`none` or names and paths with commas between."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    return () if names in ((), ("none",)) else names
