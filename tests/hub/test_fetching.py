"""Models from a hub on this machine: fetched, resumed, refused, and nothing left behind."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from parlay.errors import BadRequest, ModelUnavailable
from parlay.hub.resolving import resolve_model
from parlay.hub.variant_fit import DRAFTER_SHARE, scaled
from parlay.llama.settings import ContextSettings, ModelSettings
from parlay.planning.devices import MemoryPool
from parlay.planning.limits import plan_here
from parlay.planning.needs import Load
from parlay.planning.shape import read_shape
from tests import tiny_models
from tests.cli.runner import call
from tests.hub.loopback import Hub, serving

REPO = "acme/Tiny-GGUF"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("hub-files")
    small = tiny_models.write_llama(folder / "tiny-Q4_0.gguf", n_embd=256, n_ff=256, ftype="q4_0")
    large = tiny_models.write_llama(folder / "tiny-Q8_0.gguf", n_embd=256, n_ff=256, ftype="q8_0")
    whole = tiny_models.write_llama(folder / "tiny-F32.gguf", n_embd=256, n_ff=256)
    return {"Q4_0": small, "Q8_0": large, "F32": whole}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))
    return folder


@pytest.fixture
def hub(files: dict[str, Path], cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(Hub()) as running:
        running.add(REPO, *files.values())
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


def left_behind(cache: Path) -> list[Path]:
    """Every file but the mark that the hub's library puts on its cache."""
    return [p for p in cache.rglob("*") if p.is_file() and p.name != "CACHEDIR.TAG"]


def refusal(name: str) -> str:
    with pytest.raises(ModelUnavailable) as caught:
        resolve_model(name)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_a_quantisation_is_fetched_into_the_hubs_cache_once(hub: Hub, cache: Path) -> None:
    said: list[str] = []
    path = resolve_model(f"{REPO}:q8_0", said.append)
    assert path.read_bytes() == hub.repos[REPO]["tiny-Q8_0.gguf"]
    assert cache in path.parents
    assert "licence apache-2.0" in said[0] and "GB" in said[0]
    n_asked = len(hub.asked)
    assert resolve_model(f"hf:{REPO}:Q8_0") == path
    assert resolve_model(f"hf:{REPO}/tiny-Q8_0.gguf") == path
    assert len(hub.asked) == n_asked


def test_without_a_quantisation_the_largest_quantised_one_that_fits_is_chosen(hub: Hub) -> None:
    said: list[str] = []
    path = resolve_model(REPO, said.append)
    assert path.name == "tiny-Q8_0.gguf"
    assert said[0].startswith(f"{REPO}: Q8_0") and "F32" in said[0] and "Q4_0" in said[0]


def test_a_small_machine_gets_a_smaller_quantisation(
    hub: Hub, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parlay.planning.limits.usable_pools", lambda: [free(1 << 40)])
    small, large = (planned(files["Q4_0"], files[q].stat().st_size) for q in ("Q4_0", "Q8_0"))
    room = (small + large) // 2
    monkeypatch.setattr("parlay.planning.limits.usable_pools", lambda: [free(room)])
    assert resolve_model(REPO).name == "tiny-Q4_0.gguf"


def test_a_model_that_cannot_fit_is_refused_before_it_is_fetched(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parlay.planning.limits.usable_pools", lambda: [free(1 << 20)])
    assert "needs" in refusal(REPO) and left_behind(cache) == []


def free(n_bytes: int) -> MemoryPool:
    return MemoryPool("RAM", "ram", n_bytes, n_bytes)


def planned(read: Path, size: int) -> int:
    """RAM by the plan, from the header of one file, for weights of this size."""
    shape = scaled(read_shape(read), size / read.stat().st_size * (1 + DRAFTER_SHARE))
    return plan_here([Load("target", shape, ModelSettings(), ContextSettings(4096, 1))]).in_ram


def test_a_broken_connection_is_resumed_where_it_broke(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _s: None)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 250)
    hub.breaks["tiny-Q8_0.gguf"] = 1000
    path = resolve_model(f"{REPO}:Q8_0")
    assert path.read_bytes() == hub.repos[REPO]["tiny-Q8_0.gguf"]
    first, second = hub.ranges(f"{REPO}/tiny-Q8_0.gguf")
    assert first is None and second == "bytes=1000-"


def test_a_split_model_is_fetched_whole(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "split").mkdir()
    first = tiny_models.write_llama(tmp_path / "split" / "big-Q8_0.gguf", max_tensors=8)
    hub.add("acme/Big-GGUF", *sorted(first.parent.glob("*.gguf")))
    path = resolve_model("acme/Big-GGUF")
    assert path.name.startswith("big-Q8_0-00001-of-")
    assert len(list(path.parent.glob("*.gguf"))) == len(list(first.parent.glob("*.gguf"))) > 1


def test_wrong_sums_are_refused_and_the_file_is_gone(hub: Hub, cache: Path) -> None:
    hub.wrong.add("tiny-Q8_0.gguf")
    assert "SHA-256" in refusal(f"{REPO}:Q8_0")
    assert left_behind(cache) == []
    hub.wrong.clear()
    assert resolve_model(f"{REPO}:Q8_0").is_file()


def test_a_full_disk_is_seen_before_anything_is_fetched(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _p: type("U", (), {"free": 10}))
    message = refusal(f"{REPO}:Q8_0")
    assert "disk has" in message and left_behind(cache) == []


def test_a_gated_model_says_where_to_accept_its_terms(hub: Hub, cache: Path) -> None:
    hub.gated.add(REPO)
    message = refusal(f"{REPO}:Q8_0")
    assert "gated" in message and f"{hub.url}/{REPO}" in message and "HF_TOKEN" in message
    assert left_behind(cache) == []


def test_a_misspelt_name_shows_the_nearest_ones(hub: Hub, cache: Path) -> None:
    assert f"did you mean {REPO}?" in refusal("acme/Tyni-GGUF:Q8_0")
    assert left_behind(cache) == []


def test_a_missing_quantisation_or_file_names_those_there_are(hub: Hub) -> None:
    assert "it has Q4_0, Q8_0, F32" in refusal(f"{REPO}:Q5_K_M")
    assert "did you mean tiny-Q8_0.gguf?" in refusal(f"hf:{REPO}/tiny-q8_0.gguf")


def test_a_repository_without_gguf_names_others(hub: Hub, cache: Path) -> None:
    hub.repos["acme/Tiny"] = {"model.safetensors": b"x"}
    message = refusal("acme/Tiny")
    assert message.endswith(f"no GGUF files; these do: {REPO}") and left_behind(cache) == []


def test_a_renamed_repository_is_followed(hub: Hub) -> None:
    hub.renamed["acme/Old-GGUF"] = REPO
    said: list[str] = []
    assert resolve_model("acme/Old-GGUF:Q4_0", said.append).is_file()
    assert said[0] == f"acme/Old-GGUF is called {REPO} now"


def test_offline_what_is_here_is_used_and_what_is_not_is_refused(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = resolve_model(f"{REPO}:Q4_0")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert resolve_model(f"{REPO}:Q4_0") == path
    assert resolve_model(REPO) == path
    assert "HF_HUB_OFFLINE" in refusal(f"{REPO}:Q8_0")
    told = call("pull", f"{REPO}:Q4_0")  # asks the hub otherwise
    assert told.exit_code == 0 and told.stdout.strip() == str(path)


def test_a_hub_that_is_down_is_one_line(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "did not answer" in refusal(f"{REPO}:Q8_0") and left_behind(cache) == []


def test_two_pulls_at_once_do_not_hurt_each_other(hub: Hub) -> None:
    found: list[Path] = []
    both = [
        threading.Thread(target=lambda: found.append(resolve_model(f"{REPO}:F32")))
        for _ in range(2)
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert len(found) == 2 and found[0] == found[1]
    assert found[0].read_bytes() == hub.repos[REPO]["tiny-F32.gguf"]


def test_only_what_parlay_fetched_is_removed(hub: Hub, cache: Path) -> None:
    ours = resolve_model(f"{REPO}:Q4_0")
    theirs = ours.with_name("tiny-Q8_0.gguf")
    theirs.write_bytes(hub.repos[REPO]["tiny-Q8_0.gguf"])
    refused = call("rm", f"{REPO}:Q8_0")
    assert isinstance(refused.exception, BadRequest) and theirs.is_file()
    assert call("rm", f"{REPO}:Q4_0").exit_code == 0
    assert not ours.exists() and theirs.is_file()
    assert [p.name for p in left_behind(cache) if p.suffix == ".gguf"] == [theirs.name]


def test_the_command_fetches_with_the_hubs_own_variables(hub: Hub, cache: Path) -> None:
    """In a process of its own: the library reads its variables when it is imported."""
    script = "from parlay.cli.main import app_main; app_main()"
    command = [sys.executable, "-c", script, "pull", f"{REPO}:Q4_0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == hub.repos[REPO]["tiny-Q4_0.gguf"]
    assert "licence apache-2.0" in done.stderr
