"""`parlay engine`: lists what is here, fetches what a checksum vouches for, says what is wrong."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import platform
import re
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from parlay.cli import engine as verb
from parlay.cli.main import app
from parlay.errors import EngineError, ModelUnavailable
from parlay.llama import engines, library
from tests import doors


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing was built or fetched yet; what the tests run on is installed."""
    library.engine()
    monkeypatch.setenv("PARLAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PARLAY_WHEEL_CACHE", str(tmp_path / "wheels"))
    return tmp_path / "cache"


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["engine", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_every_engine_is_listed_with_its_release_kernels_and_devices() -> None:
    rows = json.loads(run("--json"))
    assert rows
    for row in rows:
        assert row["error"] == "" and re.match(r"\d+\.\d+", row["release"])
        assert row["devices"] and Path(row["folder"]).is_dir()


def test_one_that_cannot_be_opened_is_listed_with_its_reason(own_cache: Path) -> None:
    folder = engines.engines_folder() / "broken"
    folder.mkdir(parents=True)
    (folder / "libllama.so").write_bytes(b"\x7fELF")
    (folder / engines.RECORD).write_text('{"source": "built", "needs": []}')
    [broken] = [row for row in json.loads(run("--json")) if row["name"] == "broken"]
    assert "is truncated" in broken["error"]
    assert "is truncated" in run()


def test_one_that_is_named_and_lies_elsewhere_is_listed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    for path in library.engine().folder.iterdir():
        if ".so" in path.name or ".dylib" in path.name:
            is_it = path == library.engine().library
            shutil.copyfile(path, folder / ("libllama.so" if is_it else path.name))
    monkeypatch.setenv(engines.NAMED, str(folder))
    monkeypatch.setattr(verb, "ask", lambda engine: verb.Told(release=engine.source))
    first, *_ = json.loads(run("--json"))
    assert (first["source"], first["release"]) == ("named", "named")


# -- fetching ----------------------------------------------------------------------------------


def packed(folder: Path, names: dict[str, Path | bytes]) -> bytes:
    """A package as npm has it."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz", compresslevel=0) as files:
        for name, content in names.items():
            raw = content if isinstance(content, bytes) else content.read_bytes()
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(raw)
            files.addfile(member, io.BytesIO(raw))
    return made.getvalue()


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """What npm's registry answers, and the checksum that is expected, of the first such answer."""
    answers: dict[str, bytes] = {}

    def stream(method: str, url: str, **_: object) -> object:
        handler = httpx.MockTransport(lambda _: httpx.Response(200, content=answers["body"]))
        return httpx.Client(transport=handler).stream(method, url)

    monkeypatch.setattr(httpx, "stream", stream)
    yield answers


def expect(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    checksum = base64.b64encode(hashlib.sha512(body).digest()).decode()
    monkeypatch.setattr(verb, "_PACKAGES", {(platform.machine(), "cpu"): ("linux-x64", checksum)})


@pytest.mark.skipif(platform.system() != "Linux", reason="npm's packages are for Linux")
def test_what_was_fetched_is_used_from_then_on(
    registry: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(engines.NAMED, raising=False)
    parts: dict[str, Path | bytes] = {"package.json": b"{}", "../../outside.so": b"no"}
    for path in library.engine().folder.iterdir():
        if ".so" in path.name:
            name = "libllama.so" if path == library.engine().library else path.name
            parts[f"bins/linux-x64/{name}"] = path
    registry["body"] = packed(tmp_path, parts)
    expect(monkeypatch, registry["body"])
    folder = Path(run("fetch").split()[-1])
    assert folder == engines.engines_folder() / f"npm-{verb.NPM_VERSION}"
    assert engines.find().folder == folder
    assert json.loads(run("--json"))[0]["source"] == "fetched"
    assert not list(tmp_path.rglob("outside.so"))


@pytest.mark.skipif(platform.system() != "Linux", reason="npm's packages are for Linux")
def test_another_checksum_leaves_nothing_behind(
    registry: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry["body"] = packed(tmp_path, {"bins/linux-x64/libllama.so": b"something else"})
    expect(monkeypatch, b"what was pinned")
    with pytest.raises(ModelUnavailable, match="has another checksum than it should"):
        run("fetch")
    assert not list(engines.engines_folder().glob("*/"))


@pytest.mark.skipif(platform.system() != "Linux", reason="npm's packages are for Linux")
def test_libraries_that_cannot_be_opened_are_not_kept(
    registry: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry["body"] = packed(tmp_path, {"bins/linux-x64/libllama.so": b"\x7fELF"})
    expect(monkeypatch, registry["body"])
    with pytest.raises(EngineError, match=r"cannot be used: .*is truncated"):
        run("fetch")
    assert not list(engines.engines_folder().glob("*/"))


# -- building ----------------------------------------------------------------------------------


def test_without_a_compiler_building_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(EngineError, match=r"no C\+\+ compiler found: .*parlay engine fetch"):
        run("build")


def test_a_build_that_was_made_with_the_same_options_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its wheel is kept; other options are another build."""
    import zipfile

    monkeypatch.delenv(engines.NAMED, raising=False)
    asked: list[str] = []

    def compiled(arguments: str, wheels: Path) -> Path:
        asked.append(arguments)
        wheels.mkdir(parents=True)
        wheel = wheels / "llama_cpp_python-0.3.36-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as files:
            for path in library.engine().folder.iterdir():
                if ".so" in path.name:
                    name = "libllama.so" if path == library.engine().library else path.name
                    files.write(path, f"llama_cpp/lib/{name}")
        return wheel

    monkeypatch.setattr(verb, "_compiled", compiled)
    first = run("build").split()[-1]
    assert engines.find().folder == Path(first)
    assert run("build").split()[-1] == first
    other = run("build", "--", "-DGGML_BLAS=ON").split()[-1]
    assert other != first
    assert [a.endswith("-DGGML_BLAS=ON") for a in asked] == [False, True]
    assert engines.find().folder == Path(other), "the newest is used"


# -- in use ------------------------------------------------------------------------------------


def broken(folder: Path, what: str) -> Path:
    """A folder with a library that cannot be used."""
    whole = library.engine().library.read_bytes()
    path = folder / what / "libllama.so"
    path.parent.mkdir()
    if what == "truncated":
        path.write_bytes(whole[: len(whole) // 2])
    elif what == "for another kind of processor":
        path.write_bytes(whole[:18] + (b"\xb7" if whole[18] == 0x3E else b"\x3e") + whole[19:])
    elif what == "for another processor":
        path.write_bytes(whole)
        (path.parent / engines.RECORD).write_text('{"source": "built", "needs": ["avx4096"]}')
    return path.parent


@pytest.mark.skipif(platform.system() != "Linux", reason="ELF")
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("truncated", "is truncated"),
        ("for another kind of processor", "this is"),
        ("for another processor", "this one lacks avx4096"),
        ("missing", "no engine"),
    ],
)
def test_an_engine_that_cannot_be_used_is_one_line_and_exit_code_1(
    what: str, said: str, tmp_path: Path, tiny_llama: Path
) -> None:
    folder = broken(tmp_path, what)
    done = doors.command("--engine", folder, *doors.run_words(tiny_llama, "hello"))
    lines = [line for line in done.stderr.splitlines() if line]
    assert done.returncode == 1 and done.stdout == ""
    assert said in lines[-1] and lines[-1].startswith("parlay: ")
    assert "Traceback" not in done.stderr


def test_what_would_be_gained_is_told_where_it_was_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(engines.NAMED, raising=False)
    wide = frozenset({"avx2", "avx512f", "f16c", "fma"})
    monkeypatch.setattr(engines, "cpu_flags", lambda: wide)
    hinted = "parlay engine fetch" in engines.hint()
    assert hinted == (engines.find().name == "xllamacpp")
    monkeypatch.setattr(engines, "cpu_flags", lambda: wide - {"avx512f"})
    assert engines.hint() == ""
