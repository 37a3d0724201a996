"""What the tests of training share: a tiny target, and text that it wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from parlay_train.corpus import Corpus
from parlay_train.writing_prompts import Shares
from tests.conftest import own_folders, tiny_folder, tiny_llama

__all__ = ["own_folders", "tiny_folder", "tiny_llama", "written"]


@pytest.fixture(scope="session")
def written(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """A few thousand tokens by the tiny target: as many as it takes to hold two texts out that
    were not drawn, which chance decides."""
    pytest.importorskip("torch")
    from parlay_train.writers import WritingJob, write
    from parlay_train.writing import WritingSettings

    folder = tmp_path_factory.mktemp("corpus")
    settings = WritingSettings(
        slots=16,
        context_size=256,
        max_user_tokens=16,
        max_answer_tokens=48,
        top_k=32,
        shares=Shares(found=0.0),  # to find texts takes seconds
    )
    while True:
        write(WritingJob(tiny_llama, folder, n_tokens=5000, settings=settings), lambda _: None)
        held_out = Corpus(folder).texts("held_out")
        if sum(text.temperature == 0 for text in held_out) >= 2:
            return Corpus(folder)
