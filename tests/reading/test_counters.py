"""Metrics pages of vLLM, llama.cpp and SGLang: summed over engines, absent means off."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from parlay.reading import counters

VLLM = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 5.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 30.0
vllm:spec_decode_num_draft_tokens_total{engine="1",model_name="m"} 15.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 9.0
vllm:spec_decode_num_accepted_tokens_total{engine="1",model_name="m"} 7.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 6.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 3.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="m",position="0"} 4.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="m",position="1"} 3.0
"""


def test_counters_are_summed_over_engines() -> None:
    page = counters.parse(VLLM)
    assert (page.drafts, page.drafted, page.accepted) == (15, 45, 16)
    assert page.accepted_at == {0: 10, 1: 6}
    assert page.speculates


def test_llama_cpp_has_the_same_names_behind_another_prefix() -> None:
    assert counters.parse(VLLM.replace("vllm:", "llamacpp:")) == counters.parse(VLLM)


def test_a_page_without_them_means_off() -> None:
    page = counters.parse('vllm:generation_tokens_total{engine="0"} 12.0\n')
    assert not page.speculates
    assert counters.added(page, page, 12) is None


def test_what_was_added_is_a_difference() -> None:
    before = counters.parse("".join(x for x in VLLM.splitlines(True) if 'engine="0"' in x))
    told = counters.added(before, counters.parse(VLLM), 20)
    assert told is not None
    assert (told.drafted, told.accepted, told.rounds) == (15, 7, 13)
    assert (told.speculated_rounds, told.accepted_at) == (5, [4, 3])


def test_sglang_tells_length_and_rate_as_means_over_its_engines() -> None:
    page = counters.parse(
        'sglang:spec_accept_length{dp_rank="0"} 2.0\nsglang:spec_accept_length{dp_rank="1"} 3.0\n'
        'sglang:spec_accept_rate{dp_rank="0"} 0.5\n'
    )
    assert (page.accept_length, page.accept_rate, page.speculates) == (2.5, 0.5, True)
    told = counters.added(counters.Counters(), page, 25)
    assert told is not None and (told.rounds, told.accepted, told.drafted) == (10, 15, 30)


def test_sglang_without_speculation_has_its_gauge_at_nothing() -> None:
    assert not counters.parse("sglang:spec_accept_length 0.0\n").speculates


@given(st.text(max_size=200))
def test_no_page_breaks_the_reader(text: str) -> None:
    assert counters.added(counters.Counters(), counters.parse(text), 1) is None
