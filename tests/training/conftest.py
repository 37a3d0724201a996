"""What the tests of training share: a tiny target, and text that it wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from parlay.training.corpus import Corpus


@pytest.fixture(scope="session")
def written(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """A few thousand tokens by the tiny target."""
    pytest.importorskip("torch")
    from parlay.training.writers import WritingJob, write
    from parlay.training.writing import WritingSettings

    folder = tmp_path_factory.mktemp("corpus")
    settings = WritingSettings(
        slots=16, context_size=256, max_user_tokens=16, max_answer_tokens=48, top_k=32
    )
    write(WritingJob(tiny_llama, folder, n_tokens=12_000, settings=settings), lambda _: None)
    return Corpus(folder)
