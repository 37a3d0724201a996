"""Every error Parlay raises on purpose. Each is one line: what happened, and what to do.

    ParlayError
    |-- BadRequest            an option has a value that cannot be used
    |   |-- PromptTooLong     the prompt does not fit into the context
    |   `-- NothingFollows    no token may come next: grammar and logit_bias leave none
    |-- Closed                the engine is closed, or was while an answer was made
    |-- ModelUnavailable      a model is not here and could not be fetched
    |-- ModelFileError        the file is missing, not GGUF, or truncated
    |-- LoadError             llama.cpp refused the model, or memory ran out
    |   `-- EngineError       llama.cpp's libraries are missing, or cannot be used here
    |-- VocabularyMismatch    target and drafter do not share a vocabulary
    |-- RollbackUnsupported   the model's cache cannot drop rejected tokens
    `-- DecodeError           a llama.cpp call failed; carries its return code

This module knows nothing of llama.cpp, HTTP or the command line; they map these to their own codes.
"""


class ParlayError(Exception):
    """Base class. The message is shown to people as it is, without a traceback."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class BadRequest(ParlayError):
    """An option has a value that cannot be used."""


class PromptTooLong(BadRequest):
    """The prompt does not fit into the context."""


class NothingFollows(BadRequest):
    """No token may come next: the grammar and logit_bias leave none."""


class Closed(ParlayError):
    """The engine is closed, or was while an answer was being made."""


class ModelUnavailable(ParlayError):
    """A model is not on this machine and could not be fetched."""


class ModelFileError(ParlayError):
    """The model file is missing, not GGUF, or truncated."""


class LoadError(ParlayError):
    """llama.cpp refused the model, or memory ran out."""


class EngineError(LoadError):
    """llama.cpp's libraries are missing, broken, or of a release that is not known."""


class VocabularyMismatch(ParlayError):
    """Target and drafter do not share a vocabulary."""


class RollbackUnsupported(ParlayError):
    """The model's cache cannot drop rejected tokens, so it cannot verify a draft."""


class DecodeError(ParlayError):
    """A llama.cpp call failed."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[type["DecodeError"], tuple[str, int]]:
        return type(self), (self.message, self.code)
