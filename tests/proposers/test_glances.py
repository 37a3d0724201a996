from __future__ import annotations

from parlay.proposers.glances import Glances


def seen(text: str, guesses: str) -> list[bool]:
    """What is said of every place of a text, with the guess that was made there."""
    glances, found = Glances(), []
    for i, guess in enumerate(guesses):
        tokens = [ord(c) for c in text[: i + 1]]
        found.append(glances.saw(0, tokens, frozenset({ord(guess)})))
    return found


def test_three_right_guesses_in_a_row_are_a_text_that_repeats_itself() -> None:
    assert seen("abcdef", "bcdefg") == [False, False, False, True, True, True]


def test_one_wrong_guess_begins_the_row_anew() -> None:
    assert seen("abcdefgh", "bcxefgh-") == [False] * 6 + [True, True]


def test_a_guess_says_nothing_of_a_token_further_on() -> None:
    glances = Glances()
    for n in (1, 3, 5, 7, 9):  # two tokens a round
        assert not glances.saw(0, [7] * n, frozenset({7}))


def test_slots_are_told_apart() -> None:
    glances = Glances()
    for n in range(1, 4):
        assert not glances.saw(0, [7] * n, frozenset({7}))
    assert not glances.saw(1, [7] * 4, frozenset({7}))
    assert glances.saw(0, [7] * 4, frozenset({7}))


def test_of_many_texts_a_few_are_glanced_at_and_each_for_long_enough() -> None:
    glances, texts = Glances(), list(range(5))
    turns = [tuple(glances.whose_turn(texts)) for _ in range(80)]
    assert {len(turn) for turn in turns} <= {1, 2}
    for text in texts:
        rows = "".join("x" if text in turn else " " for turn in turns).split()
        assert max(map(len, rows)) >= 8


def test_of_many_texts_one_must_go_on_as_expected_for_longer() -> None:
    glances = Glances()
    found = []
    for n in range(1, 9):
        glances.whose_turn(range(16))
        found.append(glances.saw(0, [7] * n, frozenset({7})))
    assert found == [False] * 6 + [True, True]


def test_one_text_is_glanced_at_in_every_round() -> None:
    glances = Glances()
    assert all(glances.whose_turn(["one"]) == ["one"] for _ in range(50))
    assert glances.whose_turn([]) == []
