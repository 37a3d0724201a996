from __future__ import annotations

from dataclasses import dataclass

from parlay.decoding.draft import Draft, Shown
from parlay.proposers.glances import Glances


@dataclass
class Slot:
    seq_id: int
    tokens: list[int]


def slot(text: str, seq_id: int = 0) -> Slot:
    return Slot(seq_id, [ord(c) for c in text])


def draft(text: str) -> Draft:
    return Draft(tuple(ord(c) for c in text), "suffix")


def shown(n_right: int, *, wrong: bool) -> Shown:
    return Shown("suffix", n_right, wrong)


def follow(glances: Glances, at: Slot, drafted: str) -> None:
    glances.follow(at.seq_id, len(at.tokens), draft(drafted))


def test_three_right_tokens_in_a_row_are_a_text_that_repeats_itself() -> None:
    glances, said = Glances(), []
    follow(glances, slot("a"), "bcdef")
    for text in ("a", "ab", "abc", "abcd", "abcde"):
        assert glances.whose_turn([slot(text)]) == []  # nobody is asked while a draft holds
        said.append(glances.repeats(1))
    assert said == [False, False, False, True, True]


def test_a_row_goes_on_with_the_next_draft() -> None:
    glances = Glances()
    follow(glances, slot("a"), "bc")
    assert glances.whose_turn([slot("abc")]) == [slot("abc")]
    follow(glances, slot("abc"), "defg")
    glances.whose_turn([slot("abcd")])
    assert glances.repeats(1)
    assert glances.shown(0) == [shown(3, wrong=False)]


def test_a_text_that_goes_another_way_is_told_of_and_asked_about_again() -> None:
    glances = Glances()
    follow(glances, slot("a"), "bcd")
    assert glances.whose_turn([slot("abx")]) == [slot("abx")]
    assert not glances.repeats(1)
    assert glances.shown(0) == [shown(1, wrong=True)]
    assert glances.shown(0) == ()


def test_a_token_behind_a_draft_is_not_wrong() -> None:
    glances = Glances()
    follow(glances, slot("a"), "bc")
    glances.whose_turn([slot("abcx")])
    assert glances.shown(0) == [shown(2, wrong=False)]


def test_what_a_search_has_seen_is_not_told_again() -> None:
    glances = Glances()
    follow(glances, slot("a"), "bcdef")
    glances.whose_turn([slot("ab")])
    assert glances.shown(0) == [shown(1, wrong=False)]
    glances.pause()
    glances.whose_turn([slot("abcd")])
    assert glances.shown(0) == ()
    glances.whose_turn([slot("abcde")])
    assert glances.shown(0) == [shown(1, wrong=False)]


def test_another_text_in_a_slot_has_shown_nothing() -> None:
    glances = Glances()
    follow(glances, slot("aaaa"), "bcd")
    glances.whose_turn([slot("aaaabc")])
    glances.forget(0)
    assert glances.shown(0) == ()
    follow(glances, slot("aaaa"), "bcd")
    glances.whose_turn([slot("aaaabc")])
    glances.whose_turn([slot("x")])
    assert glances.shown(0) == ()


def test_of_many_texts_two_are_asked_about_each_in_its_turn() -> None:
    glances, texts = Glances(), [slot("a", i) for i in range(4)]
    asked = []
    for _ in range(4):
        turn = glances.whose_turn(texts)
        assert len(turn) == 2
        asked += [each.seq_id for each in turn]
        for each in turn:
            follow(glances, each, "")
    assert sorted(asked) == sorted([*range(4)] * 2)


def test_of_sixteen_texts_a_quarter_is_asked_about() -> None:
    assert len(Glances().whose_turn([slot("a", i) for i in range(16)])) == 4


def test_two_thirds_of_many_texts_must_go_on_as_drafted_and_for_longer() -> None:
    glances = Glances()
    for i in range(4):
        follow(glances, slot("a", i), "bcdefghi")
    texts = ["abcd", "abcde"]
    said = []
    for text in texts:
        glances.whose_turn([slot(text, i) for i in range(4)])
        said.append((glances.repeats(6), glances.repeats(7)))
    assert said == [(False, False), (True, False)]


def test_how_sure_drafts_were_of_what_came_is_told_as_far_as_it_is_known() -> None:
    glances = Glances()
    rated = Draft(draft("bcde").tokens, "suffix", (0.5, 0.6, 0.7, 0.8))
    glances.follow(0, 1, rated)
    glances.whose_turn([slot("abc")])
    assert glances.shown(0) == [Shown("suffix", 2, False, (0.5, 0.6))]
    glances.whose_turn([slot("abcdx")])
    assert glances.shown(0) == [Shown("suffix", 1, True, (0.7, 0.8))]
    glances.follow(0, 5, rated)
    glances.whose_turn([slot("abcdxbcde")])
    glances.follow(0, 9, Draft(draft("fg").tokens, "suffix", (0.9, 0.9)))
    glances.whose_turn([slot("abcdxbcdef")])
    assert glances.shown(0) == [Shown("suffix", 5, False, (0.9,))]  # the first draft is gone
