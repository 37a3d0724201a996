"""GGUF files of a repository: quantisations, split files, and what is no model."""

from __future__ import annotations

import pytest

from parlay.hub.variant import RemoteFile, is_model, matching, quantisation_of, variants


@pytest.mark.parametrize(
    ("stem", "mark"),
    [
        ("Qwen2.5-7B-Instruct-Q4_K_M", "Q4_K_M"),
        ("model.q8_0", "Q8_0"),
        ("Big-UD-IQ2_XXS", "UD-IQ2_XXS"),
        ("gpt-oss-20b-mxfp4", "MXFP4"),
        ("BF16/model", "BF16"),
        ("Q4_0/model-Q5_K_S", "Q5_K_S"),
        ("Qwen3-8B", None),
    ],
)
def test_a_quantisation_is_read_from_the_name(stem: str, mark: str | None) -> None:
    assert quantisation_of(stem) == mark


def files(*names: str) -> list[RemoteFile]:
    return [RemoteFile(name, 10 * (i + 1)) for i, name in enumerate(names)]


def test_parts_of_a_split_model_are_one_and_an_incomplete_one_is_none() -> None:
    found = variants(
        files(
            "q/m-Q8_0-00001-of-00002.gguf",
            "q/m-Q8_0-00002-of-00002.gguf",
            "m-Q4_0-00001-of-00003.gguf",
            "README.md",
        )
    )
    assert [(v.quantisation, len(v.files), v.n_bytes) for v in found] == [("Q8_0", 2, 30)]


def test_projectors_and_heads_are_no_models() -> None:
    found = variants(files("mmproj-F16.gguf", "m-dflash-Q4_0.gguf", "imatrix.gguf", "m-Q4_0.gguf"))
    assert [v.stem for v in found if is_model(v)] == ["m-Q4_0"]


def test_the_plain_quantisation_goes_before_one_that_holds_it() -> None:
    found = variants(files("m-UD-Q4_K_XL.gguf", "m-Q4_K_M.gguf"))
    assert [v.stem for v in matching(found, "q4_k_m")] == ["m-Q4_K_M"]
    assert [v.stem for v in matching(found, "Q4_K_XL")] == ["m-UD-Q4_K_XL"]
