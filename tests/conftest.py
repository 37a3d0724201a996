"""Models the tests share: tiny random ones, and the default model in several file types.

Knows no test: whoever asks for real weights carries the marker `weights`.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import signal
import ssl
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, settings

from parlay import models, store
from parlay.deployment import MonitoringSection
from parlay.engine.exact import choice
from parlay.engine.structured import grammar_check
from tests import distribution, tiny_models
from tests.hub.loopback import Hub, serving
from tests.requantise import requantise
from tests.serving import PATIENCE_S

# How long an example takes depends on who else is at work. The examples are the same in every run:
# whoever changes nothing finds nothing new. `--hypothesis-profile=search` draws others.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("patient", settings.get_profile("search"), derandomize=True)
settings.load_profile("patient")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell, for instance
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # processes that tests start inherit it

# What an engine is chosen by holds for the tests, too.
KEPT = ("PARLAY_PICTURES", "PARLAY_ENGINE", "PARLAY_PLAIN_LLAMA")

pytest_plugins = ["tests.front.fixtures"]  # servers that several parts' tests share


@pytest.fixture(scope="session", autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Neither the user's settings and pairs nor what earlier runs learned: only models are kept."""
    kept, cache = store.cache_folder(), tmp_path_factory.mktemp("cache")
    for name in ("models", "test-models"):
        with contextlib.suppress(OSError):  # a cache that cannot be written is not an error
            (kept / name).mkdir(parents=True, exist_ok=True)
        (cache / name).symlink_to(kept / name, target_is_directory=True)
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("PARLAY_") and name not in KEPT:
                patch.delenv(name)
        patch.setenv("PARLAY_CACHE", str(cache))
        patch.setenv("PARLAY_CONFIG", str(tmp_path_factory.mktemp("config")))
        for name in ("HF_HUB_CACHE", "LLAMA_CACHE", "OLLAMA_MODELS"):
            patch.setenv(name, str(tmp_path_factory.mktemp("other-programs")))
        patch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens: no test asks the hub
        yield


@pytest.fixture
def own_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests measured and probed is not believed here."""
    monkeypatch.setenv("PARLAY_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub on this machine, empty, as the one that is asked."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    with serving(Hub()) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


@pytest.fixture(scope="session", autouse=True)
def patient_limits() -> Iterator[None]:
    """Probes and readers of grammars take as long as they need: that they are cut short on a slow
    machine is no fault of theirs."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_PROBE_S", "_SCOUT_S"):
            patch.setattr(choice, name, float("inf"))
        patch.setattr(grammar_check, "LIMIT_S", PATIENCE_S)
        yield


@pytest.fixture(scope="session", autouse=True)
def patient_http() -> None:
    """A request that names no limit may take a minute, not five seconds: machines may be busy."""
    limits = inspect.signature(httpx.get).parameters["timeout"].default  # the same one everywhere
    limits.connect = limits.read = limits.write = limits.pool = 60.0


@pytest.fixture(scope="session", autouse=True)
def certificates_read_once() -> Iterator[None]:
    """Every client reads all the world's again, in 50 ms: more than most requests here take."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", cache(ssl.create_default_context))
        yield


@pytest.fixture(scope="session", autouse=True)
def drafters_stay_on_a_full_machine() -> Iterator[None]:
    """Who tests what memory pressure does pretends it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MonitoringSection, "memory_pressure_pct", 100)
        yield


# Threads that outlive a test although it left nothing behind: those of a server's event loop and of
# libraries, which are ended by whoever began them.
_LASTING = ("AnyIO worker thread", "asyncio_", "ThreadPoolExecutor", "pydev", "tqdm")


@pytest.fixture(autouse=True)
def threads_are_joined() -> Iterator[None]:
    """A thread that a test began ends with it, or fails it; not a later one."""
    before = set(threading.enumerate())
    yield
    end = time.monotonic() + PATIENCE_S / 10
    while (left := _begun_since(before)) and time.monotonic() < end:
        left[0].join(0.05)
    assert not left, f"threads were left running: {', '.join(t.name for t in left)}"


def _begun_since(before: set[threading.Thread]) -> list[threading.Thread]:
    return [
        thread
        for thread in threading.enumerate()
        if thread not in before and not thread.name.startswith(_LASTING)
    ]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny-models")


@pytest.fixture(scope="session")
def tiny_llama(tiny_folder: Path) -> Path:
    return tiny_models.write_llama(tiny_folder / "llama.gguf")


@pytest.fixture(scope="session")
def tiny_drafter(tiny_folder: Path, tiny_llama: Path) -> Path:
    """Agrees with `tiny_llama` often, not always."""
    return tiny_models.perturb(tiny_llama, tiny_folder / "drafter.gguf")


@pytest.fixture(scope="session")
def tiny_wide(tiny_folder: Path) -> Path:
    """Rows of 256: wide enough for K-quants."""
    return tiny_models.write_llama(tiny_folder / "wide.gguf", n_embd=256, n_ff=256)


@pytest.fixture(scope="session")
def tiny_other_vocab(tiny_folder: Path) -> Path:
    """As `tiny_llama`, but some tokens of the same number stand for other texts."""
    path = tiny_folder / "other-vocab.gguf"
    return tiny_models.write_llama(path, vocab=tiny_models.OTHER_TEXTS)


@pytest.fixture(scope="session")
def tiny_mamba(tiny_folder: Path) -> Path:
    """Recurrent: its cache cannot be cut at any position."""
    return tiny_models.write_mamba(tiny_folder / "mamba.gguf")


@pytest.fixture(scope="session")
def tiny_lfm2(tiny_folder: Path) -> Path:
    """Hybrid: recurrent and attention layers in turn."""
    return tiny_models.write_lfm2(tiny_folder / "lfm2.gguf")


@pytest.fixture(scope="session")
def tiny_gemma3(tiny_folder: Path) -> Path:
    """Sliding window: every other layer forgets what is more than 16 tokens back."""
    return tiny_models.write_gemma3(tiny_folder / "gemma3.gguf")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The default model as it is shipped, Q4_1. Only for tests marked `weights`."""
    return models.default_model()


@pytest.fixture(scope="session")
def smollm2_as(smollm2: Path) -> Callable[[str], Path]:
    """The default model in another file type, such as "q8_0", kept between runs."""

    def in_type(ftype: str) -> Path:
        folder = store.cache_folder() / "test-models"
        made_by = f"{models.SHA256[:12]}-to-nearest"
        path = folder / f"smollm2-{ftype}-{made_by}.gguf"
        with store.locked(path):  # or another worker would make it too, and replace this one's
            if not path.exists():
                _requantise_once(smollm2, path, ftype)
        return path

    return in_type


def _requantise_once(src: Path, dst: Path, ftype: str) -> None:
    dst.parent.mkdir(parents=True, exist_ok=True)
    # Under a name of its own first: an interrupted run must leave no half a model behind.
    with tempfile.TemporaryDirectory(dir=dst.parent, prefix=".part-") as folder:
        requantise(src, Path(folder) / dst.name, ftype).replace(dst)


# Folders of tests that load nothing but small vocabularies: all of them are quick.
_QUICK = ("decoding", "chat")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name in _QUICK:
            item.add_marker(pytest.mark.quick)
    distribution.heaviest_first(items)


def pytest_collection_finish() -> None:
    """What is loaded by now stays: looking through it after each test would take half a second."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> distribution.Shares | None:
    """Whole files, but for some that are cut into their parameters."""
    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False
    return distribution.Shares(config, log)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """An unclosed thing warns when it is collected: here, so that it is its own test's failure.

    What is still there after the last test of a file is not looked at again: so this stays quick.
    """
    gc.collect()
    if nextitem is None or nextitem.path != item.path:
        gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The last line says which tests were not run, and how to get them."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(_reason(report) for report in skipped)
    told = [f"{n} for {reason} ({_GET.get(reason, 'see -rs')})" for reason, n in reasons.items()]
    if told:
        terminalreporter.write_line(f"Not run: {'; '.join(sorted(told))}.")


_GET = {
    "want of Chromium": "apt-get install chromium; pip install -e .[dev]",
    "want of PyTorch": "pip install -e .[train]",
    "want of xllamacpp": "pip install -e .[peer]",
    "want of schemathesis": "pip install -e .[dev]",
    "want of curl": "apt-get install curl",
}
_WORDS = {"chromium": "Chromium", "torch": "PyTorch"}


def _reason(report: Any) -> str:
    """In few words, so that many tests share one."""
    text = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
    for word in ("chromium", "torch", "xllamacpp", "schemathesis", "curl"):
        if word in text.lower():
            return f"want of {_WORDS.get(word, word)}"
    return text.removeprefix("Skipped: ").strip()
