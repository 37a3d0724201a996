"""What is told of a finished answer."""

from __future__ import annotations

from parlay.engine.answer import Answer
from parlay.engine.request import Request
from tests.engine.rig import Rig, plain

PROMPT = (3, 5, 7)


def test_text_that_was_held_back_to_the_end_is_no_token_more() -> None:
    said = plain(Request(PROMPT, max_tokens=1000), context_size=32)
    rig = Rig(window=0, context_size=32)
    begins_to_stop = said[-2:] + "?"
    (seq,) = rig.run(Request(PROMPT, max_tokens=1000, stop=(begins_to_stop,)))
    answer = Answer.of(seq, rig.pieces[seq], "exact")
    assert (answer.text, answer.finish_reason) == (said, "length")
    assert list(answer.tokens) == seq.tokens[len(PROMPT) :]
    assert answer.as_dict()["usage"]["completion_tokens"] == seq.n_generated
