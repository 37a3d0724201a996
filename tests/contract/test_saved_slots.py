"""Slots saved, restored and erased by name over HTTP, on a hybrid and on a plain model."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import doors, tiny_models

PROMPT = "the cat sat on the mat and the " * 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slots") / "made" / "saved"


@pytest.fixture(scope="module", params=["llama", "qwen35"])
def server(request: pytest.FixtureRequest, folder: Path) -> Iterator[doors.Server]:
    path = folder.parent.parent / f"{request.param}.gguf"
    tiny_models.WRITERS[request.param](path, ftype="q8_0")
    keys = {"server__api_keys": ("one", "two"), "server__slot_save_path": str(folder)}
    with doors.server(path, runtime__slots=1, runtime__mode="faithful", **keys) as found:
        yield found


def post(server: doors.Server, path: str, body: Any = None, key: str = "one") -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.post(f"{server.url}{path}", json=body, headers=headers, timeout=60)


def complete(server: doors.Server, prompt: str = PROMPT, key: str = "one") -> tuple[str, int]:
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0}
    found = post(server, "/v1/completions", body, key).json()
    return found["choices"][0]["text"], found["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_saved_conversation_goes_on_after_the_slot_was_erased(server: doors.Server) -> None:
    post(server, "/slots/0?action=erase")
    text, cached = complete(server)
    assert cached == 0
    saved = post(server, "/slots/0?action=save", {"filename": "talk.bin"}).json()
    assert saved["id_slot"] == 0 and saved["filename"] == "talk.bin"
    assert saved["n_saved"] > 100 and saved["n_written"] > 1000
    assert post(server, "/slots/0?action=erase").json() == {
        "id_slot": 0,
        "n_erased": saved["n_saved"],
    }
    restored = post(server, "/slots/0?action=restore", {"filename": "talk.bin"}).json()
    assert restored["n_restored"] == saved["n_saved"]
    assert restored["n_read"] == saved["n_written"]
    _, cached = complete(server, PROMPT + text + " he")
    assert cached >= 128  # the end may be cut into other tokens; a chunk is surely there


def test_what_one_key_saved_is_not_anothers(server: doors.Server) -> None:
    complete(server)
    post(server, "/slots/0?action=save", {"filename": "mine.bin"})
    for action, said in (("restore", "another's"), ("save", "another's")):
        refused = post(server, f"/slots/0?action={action}", {"filename": "mine.bin"}, "two")
        assert refused.status_code == 400
        assert said in refused.json()["error"]["message"]
    assert post(server, "/slots/0?action=erase", key="two").json()["n_erased"] == 0
    refused = post(server, "/slots/0?action=save", {"filename": "other.bin"}, "two")
    assert "nothing of yours" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/slots/0?action=restore", {"filename": "never.bin"}, "nothing was saved as never.bin"),
        ("/slots/0?action=save", {"filename": "../x"}, "may have letters"),
        ("/slots/0?action=save", {"filename": ".hidden"}, "may have letters"),
        ("/slots/0?action=save", {}, "may have letters"),
        ("/slots/7?action=erase", None, "there is no slot 7"),
    ],
)
def test_a_wrong_name_or_slot_is_told_in_one_line(
    server: doors.Server, path: str, body: Any, said: str
) -> None:
    answer = post(server, path, body)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


def test_a_name_is_as_long_as_its_bytes(server: doors.Server) -> None:
    """128 of these letters are 512 bytes, more than a file's name may have."""
    answer = post(server, "/slots/0?action=save", {"filename": "\U00020000" * 128})
    assert answer.status_code == 400
    assert "128 bytes at most" in answer.json()["error"]["message"]


def test_of_two_keys_that_save_one_name_at_once_one_has_it(
    tiny_llama: Path, tmp_path: Path
) -> None:
    keys = {"server__api_keys": ("one", "two"), "server__slot_save_path": str(tmp_path)}
    with (
        doors.server(tiny_llama, runtime__slots=2, **keys) as server,
        ThreadPoolExecutor(2) as pool,
    ):
        for key in ("one", "two"):
            complete(server, f"{key} said {PROMPT}", key)
        for n in range(8):
            body = {"filename": f"race-{n}.bin"}

            def save(key: str, body: Any = body) -> list[int]:
                paths = [f"/slots/{slot}?action=save" for slot in (0, 1)]
                return [post(server, path, body, key).status_code for path in paths]

            codes = list(pool.map(save, ("one", "two")))
            assert [200 in each for each in codes].count(True) == 1  # a slot is one key's


def test_an_unknown_action_is_refused(server: doors.Server) -> None:
    assert post(server, "/slots/0?action=burn", {}).status_code in (400, 422)


def test_a_damaged_file_is_told_and_the_slot_stays(server: doors.Server, folder: Path) -> None:
    complete(server)
    post(server, "/slots/0?action=save", {"filename": "damaged.bin"})
    path = folder / "damaged.bin"
    data = bytearray(path.read_bytes())
    data[-40] ^= 255
    path.write_bytes(data)
    answer = post(server, "/slots/0?action=restore", {"filename": "damaged.bin"})
    assert "damaged" in answer.json()["error"]["message"]
    path.write_bytes(bytes(data[: len(data) // 2]))
    answer = post(server, "/slots/0?action=restore", {"filename": "damaged.bin"})
    assert "damaged" in answer.json()["error"]["message"]
    assert complete(server)[1] > 0


def test_a_folder_that_was_taken_away_is_made_again(server: doors.Server, folder: Path) -> None:
    complete(server)
    shutil.rmtree(folder)
    assert post(server, "/slots/0?action=save", {"filename": "again.bin"}).status_code == 200


def test_a_folder_that_became_a_file_is_told_in_one_line(
    server: doors.Server, folder: Path
) -> None:
    complete(server)
    shutil.rmtree(folder)
    folder.touch()
    try:
        answer = post(server, "/slots/0?action=save", {"filename": "talk.bin"})
    finally:
        folder.unlink()
        folder.mkdir()
    assert answer.status_code == 500
    assert "see server.slot_save_path" in answer.json()["error"]["message"]


def test_where_no_folder_can_be_made_is_said_before_anything_is_loaded(
    model: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    saved = {"server__slot_save_path": str(tmp_path / "file" / "saved")}
    file = doors.deployment(tmp_path / "parlay.yaml", model, **saved)
    told = doors.verb("serve", file, "--check")
    assert told.exit_code and "no folder to save to" in told.output + str(told.exception)


def test_saved_slots_are_bounded(model: Path, tmp_path: Path) -> None:
    """What lies there already takes nearly all of the room."""
    (tmp_path / "old.bin").write_bytes(bytes(990_000))
    bounds = {"server__slot_save_path": str(tmp_path), "server__slot_save_mb": 1}
    with doors.server(model, runtime__slots=1, server__api_keys="one", **bounds) as server:
        complete(server)
        answer = post(server, "/slots/0?action=save", {"filename": "talk.bin"})
    assert answer.status_code == 400
    assert "raise server.slot_save_mb" in answer.json()["error"]["message"]


def test_without_a_folder_nothing_is_saved(tiny_llama: Path) -> None:
    with doors.server(tiny_llama, runtime__slots=1) as server:
        answer = post(server, "/slots/0?action=save", {"filename": "talk.bin"})
    assert answer.status_code == 400
    assert "server.slot_save_path" in answer.json()["error"]["message"]
