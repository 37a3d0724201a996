"""What a front and a backend say to each other: a request, what comes back for it, and the rest.

Plain data. Knows neither llama.cpp nor numpy nor HTTP, and nothing of how either side works.

Who promises what:
- A door makes one `Ask` of a request; it is checked in form, not in meaning: whether a schema can
  be followed, or a prompt fits, the backend knows.
- A backend's stream for it begins with `Accepted` or with `Refused`. Before `Accepted` nothing is
  promised to the client: no byte was sent, and whoever asks may ask again, here or elsewhere.
- After `Accepted` come `Reading` and `Pieces` of each choice in its order, `SoFar` now and then,
  one `End` for each choice, and `Done` after the last: the stream is over.
- `Refused` after `Accepted` ends the stream as well: the backend could not go on. What had come so
  far, and the last `SoFar`, is what there is to tell and to log.
- Items come in batches, as a pass makes them. Closing the stream takes the request back: its slots
  are free within a round.
- An owner's cached prompts and texts are used for requests of that owner only; "" is everybody.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

Door = Literal["chat", "completions", "responses", "messages", "infill"]
Mode = Literal["exact", "faithful"]


class Remark(Struct, frozen=True):
    """Something the client should know about its request: what of it is not followed."""

    param: str
    message: str

    def as_dict(self) -> dict[str, str]:
        return {"param": self.param, "message": self.message}


# -- the request -----------------------------------------------------------------------------------


class ToolFunction(Struct, frozen=True, omit_defaults=True):
    """A function the model may call; `parameters` is a JSON schema."""

    name: str
    parameters: dict[str, Any] = {}
    description: str | None = None
    strict: bool = False


class Gap(Struct, frozen=True, omit_defaults=True):
    """What stands around a gap that is to be filled, and what is already written in it."""

    before: str
    after: str
    files: tuple[tuple[str, str], ...] = ()  # others to look at: names and texts
    begun: str = ""


class Form(Struct, frozen=True, omit_defaults=True):
    """What the whole answer must keep to: a JSON schema, or a grammar in GBNF."""

    json_schema: dict[str, Any] | None = None
    gbnf: str | None = None


class Samplers(Struct, frozen=True, omit_defaults=True):
    """As given: None is the backend's choice, and `Accepted` tells the temperature."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    penalty_last_n: int | None = None
    logit_bias: dict[int, float] | None = None


class Speculation(Struct, frozen=True, omit_defaults=True):
    """How one request wants to be drafted for; None is the deployment's choice."""

    enabled: bool | None = None  # False: plainly; True: with all that is loaded, whatever the rules
    draft: str | None = None  # proposers with commas between, or none
    window: int | None = None
    policy: str | None = None  # speculate, plain, auto, or a route's name
    mode: Mode | None = None


class Ask(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request, from its door to the engine: one of messages, prompts and gap is given."""

    door: Door
    id: str = ""  # the answer's: traces are found by it
    # A conversation in the words of chat completions: each content is one text.
    messages: tuple[dict[str, Any], ...] | None = None
    prompts: tuple[str | tuple[int, ...], ...] | None = None  # each is answered as if alone
    gap: Gap | None = None
    tools: tuple[ToolFunction, ...] = ()
    tool_choice: Literal["none", "auto", "required"] = "auto"
    tool_named: str | None = None  # the one that must be called
    parallel_tool_calls: bool = True
    form: Form | None = None
    samplers: Samplers = Samplers()
    seed: int | None = None  # None: at random, and told
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    n: int = 1  # answers to each prompt
    logprobs: int | None = None  # None: none; n: also of the n likeliest tokens
    prediction: str = ""  # the text the client expects
    context_full: Literal["stop", "slide"] | None = None
    template_options: dict[str, Any] = {}
    reasoning_effort: str | None = None
    reasoning_budget: int | None = None  # tokens; 0: none, -1: as many as there are
    verbosity: str | None = None
    split_reasoning: bool = True  # thinking is told apart from the answer
    speculation: Speculation | None = None
    model: str = ""  # by which name it was asked for
    tag: str | None = None
    headers: dict[str, str] = {}  # what rules may look at; names in lower case
    owner: str = ""  # whose cached prompts may be used
    memory: str = ""  # earlier answers that drafts may come from: those of the same name
    origins: bool = False  # where each token came from is wanted
    time_limit_s: float | None = None


# -- what comes back -------------------------------------------------------------------------------


class Accepted(Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """The request will be answered, in so many choices."""

    n_prompt: tuple[int, ...]  # of each choice, in tokens
    seed: int
    temperature: float
    mode: Mode
    policy: str  # the rule, or who else chose how it is drafted for
    thinking: bool = False  # the prompt's end opened the thinking
    functions: tuple[ToolFunction, ...] = ()  # that the answer may call
    remarks: tuple[Remark, ...] = ()
    headers: dict[str, str] = {}  # told with the answer, such as which pool makes it


class Reading(Struct, frozen=True, tag=True):
    """How far a choice's prompt has been read."""

    choice: int
    n_read: int
    n_prompt: int
    n_cached: int  # of the prompt, taken from an earlier turn's cache


class Score(Struct, frozen=True, array_like=True):
    """A token by its text and bytes, with its log-probability."""

    token: str
    logprob: float
    raw: bytes


class Detail(Struct, frozen=True, array_like=True):
    """More of one token, where the request wants it."""

    origin: str = "plain"
    proposer: str = "none"
    rejected: str = ""  # the drafted text that stood where this token now stands
    score: Score | None = None
    top: tuple[Score, ...] = ()  # the likeliest at its place


class Pieces(Struct, frozen=True, tag=True, omit_defaults=True):
    """What a pass brought to a choice."""

    choice: int
    texts: tuple[str, ...]  # that became certain with each token; the last may be of none
    n_tokens: int
    at_ms: float = 0.0  # since the request was accepted
    details: tuple[Detail, ...] = ()  # of each token, or none at all


class Figures(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an answer, or all choices of a request, took and won."""

    n_prompt: int = 0  # each prompt once, however many answers it was given
    n_cached: int = 0
    n_generated: int = 0
    n_prediction_accepted: int = 0
    n_prediction_rejected: int = 0
    queue_s: float = 0.0
    ttft_s: float | None = None  # None: no token has come
    e2e_s: float = 0.0
    speculation: dict[str, Any] = {}  # the public form: docs/reference/interface.md
    timings: dict[str, Any] = {}  # llama.cpp's names


class SoFar(Struct, frozen=True, tag=True):
    """Figures of the whole request up to now, so that its end can be logged, however it comes."""

    figures: Figures


class Refused(Struct, frozen=True, tag=True, omit_defaults=True):
    """An error as clients may read it: one line, and nothing of files, hosts or code."""

    status: int  # HTTP's
    message: str
    kind: str = "invalid_request_error"
    code: str | None = None
    param: str | None = None
    retry_after: int | None = None


class End(Struct, frozen=True, tag=True, omit_defaults=True):
    """A choice is over."""

    choice: int
    reason: Literal["stop", "length", "error"]
    figures: Figures
    stopped_by: str | None = None  # the stop string that ended it
    error: Refused | None = None


class Done(Struct, frozen=True, tag=True):
    """All choices are over: the figures of the whole request, and the log's texts if wanted."""

    figures: Figures
    texts: tuple[str, ...] = ()  # the first prompt and each answer, where prompts are logged


Reply = Accepted | Reading | Pieces | SoFar | End | Done | Refused


# -- the model -------------------------------------------------------------------------------------


class Marks(Struct, frozen=True):
    """What stands before and after the thinking."""

    open: str = "<think>"
    close: str = "</think>"


class CallForm(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a model writes tool calls. Marks are texts; some models have control tokens for them.

    json: an object with name and arguments, or a list of such. named: the name, then its arguments
    as JSON. tagged: the name, then each argument between marks. quoted: the name, then arguments
    with a quote of their own. channels: messages to a recipient.
    """

    name: str
    kind: Literal["json", "named", "tagged", "quoted", "channels"]
    shown: tuple[str, ...] = ()  # a template that writes all of these has this form
    open: str = ""  # before a call
    middle: str = ""  # after its name
    close: str = ""  # after it
    begin: str = ""  # before the first call
    end: str = ""  # after the last
    closing: str = ""  # all that a call must end with, where that is more than `close`
    prefix: str = ""  # of the name
    counted: bool = False  # the name carries the call's number
    arguments: str = "arguments"  # the key in an object
    listed: bool = False  # calls stand in a list
    bare: bool = False  # an answer that is nothing but such an object is a call, too
    key_open: str = ""
    key_close: str = ""
    value_close: str = ""
    quote: str = ""
    typed: bool = False  # an argument's tag says whether it is a text: string="true"


class Facts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A backend's model, told once when it is ready: what the parser of its answers needs."""

    names: tuple[str, ...]  # by which it may be asked for; the first is its own
    context_size: int
    n_slots: int  # requests that are answered at once
    mode: Mode
    form: CallForm
    marks: Marks = Marks()
    can_think: bool = False
    has_template: bool = True
    build: str = ""  # of what answers, in words


class State(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A backend at this moment."""

    status: Literal["loading", "restarting", "ready", "draining", "died"]
    drafter: str = "none"
    exact_class: str | None = None
    exact_cost_percent: float | None = None
    proposers: tuple[str, ...] = ()
    n_busy: int = 0
    n_waiting: int = 0


class Token(Struct, frozen=True, array_like=True):
    """A token by its number and its text."""

    id: int
    piece: str


class Answerer(Protocol):
    """What doors need of whoever answers."""

    @property
    def facts(self) -> Facts:
        """Of its model, once it is ready."""

    def answer(self, ask: Ask, *, whole: bool = False) -> AsyncGenerator[Sequence[Reply], None]:
        """The stream of one request, in batches; `aclose` takes the request back. `whole`: nothing
        goes to the client before the end, so until then it may be begun anew."""

    async def render(self, ask: Ask) -> str:
        """A conversation as the model reads it."""

    async def count(self, ask: Ask) -> int:
        """The tokens of a conversation."""

    async def tokenize(
        self, text: str, *, add_special: bool, parse_special: bool, with_pieces: bool
    ) -> list[Token]:
        """Pieces are empty unless wanted."""

    async def detokenize(self, tokens: Sequence[int]) -> str: ...


class Backend(Answerer, Protocol):
    """Whoever answers: an engine in this process or in another, or a remote server.

    What a backend cannot do raises `BadRequest` or a failure with status 501, by its name.
    """

    async def save_slot(self, slot: int, name: str, owner: str) -> dict[str, Any]: ...

    async def restore_slot(self, slot: int, name: str, owner: str) -> dict[str, Any]: ...

    async def erase_slot(self, slot: int, owner: str) -> dict[str, Any]: ...

    async def slots(self) -> list[dict[str, Any]]:
        """What each slot is doing."""

    async def memory(self) -> dict[str, Any]:
        """What is remembered of earlier answers, in numbers."""

    async def forget(self, owner: str | None) -> None:
        """One owner's memory, or everybody's; gone when this returns."""

    async def state(self) -> State: ...

    async def figures(self) -> dict[str, Any]:
        """Everything about speculation: the object of /metrics/speculative, and gauges."""

    async def trace(self, answer_id: str) -> dict[str, Any] | None:
        """One of the last answers, round by round; None: it is not kept."""

    async def close(self) -> None:
        """End it, and everything it still answers."""
