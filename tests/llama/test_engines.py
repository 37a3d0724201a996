"""Engines are found in order, and what does not fit is refused in one line before it is used."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from parlay.errors import EngineError
from parlay.llama import binding, engines, fence, library
from parlay.llama.binding import Binding

COMPILER = shutil.which(os.environ.get("CC", "cc"))
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="makes libraries of its own")


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> engines.Engine:
    """The one the tests run on, and none that is named."""
    found = library.engine()
    monkeypatch.delenv(engines.NAMED, raising=False)
    return found


def record(folder: Path, library: Path, source: str = "built", needs: tuple[str, ...] = ()) -> Path:
    folder.mkdir(parents=True)
    shutil.copyfile(library, folder / "libllama.so")
    (folder / engines.RECORD).write_text(json.dumps({"source": source, "needs": list(needs)}))
    return folder


# -- which one ---------------------------------------------------------------------------------


def test_one_that_was_built_comes_before_one_that_pip_installed_and_a_named_one_first(
    real: engines.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARLAY_CACHE", str(tmp_path))
    installed = engines.find()
    assert installed.source == "installed"
    fetched = record(engines.engines_folder() / "fetched", real.library, "fetched")
    assert engines.find().folder == fetched
    built = record(engines.engines_folder() / "mine", real.library)
    assert [e.source for e in engines.found()][:3] == ["built", "fetched", "installed"]
    assert engines.find().folder == built
    for given in ("fetched", str(fetched), str(fetched / "libllama.so")):
        monkeypatch.setenv(engines.NAMED, given)
        assert engines.find().folder == fetched.resolve()


def test_one_for_another_processor_is_passed_over_and_refused_where_it_is_named(
    real: engines.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARLAY_CACHE", str(tmp_path))
    other = record(engines.engines_folder() / "other", real.library, needs=("avx4096", "fma"))
    assert engines.find().source == "installed"
    monkeypatch.setenv(engines.NAMED, str(other))
    with pytest.raises(EngineError, match=r"another processor: this one lacks avx4096"):
        engines.find()


def test_a_name_that_is_none_says_which_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(engines.NAMED, str(tmp_path / "missing"))
    with pytest.raises(EngineError, match=r"missing.*parlay engine.*llama_?cpp"):
        engines.find()


def test_none_at_all_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(engines.NAMED, raising=False)
    monkeypatch.setenv("PARLAY_CACHE", str(tmp_path))
    monkeypatch.setattr(engines, "_package", lambda _name: None)
    with pytest.raises(EngineError, match=r"no engine: .*pip install.*parlay engine build"):
        engines.find()


# -- files that cannot be opened ---------------------------------------------------------------


def refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(engines.NAMED, str(path))
    with pytest.raises(EngineError) as caught:
        Binding(engines.find().library)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_a_truncated_library_is_refused_before_it_is_opened(
    real: engines.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = real.library.read_bytes()
    for part in (20, 100, len(whole) // 2, len(whole) - 1):
        cut = tmp_path / str(part) / "libllama.so"
        cut.parent.mkdir()
        cut.write_bytes(whole[:part])
        assert "truncated" in refused(cut.parent, monkeypatch)


@pytest.mark.skipif(platform.system() != "Linux", reason="ELF")
def test_a_library_of_another_architecture_is_refused_before_it_is_opened(
    real: engines.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bytearray(real.library.read_bytes())
    is_x86 = platform.machine() == "x86_64"
    struct.pack_into("<H", made, 18, 0xB7 if is_x86 else 0x3E)
    (tmp_path / "libllama.so").write_bytes(made)
    said = refused(tmp_path, monkeypatch)
    assert f"is for {'aarch64' if is_x86 else 'x86_64'}, this is {platform.machine()}" in said


def test_a_file_that_is_no_library_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libllama.so").write_text("GROUP ( libllama.a )")
    assert "is no library" in refused(tmp_path, monkeypatch)


# -- libraries of another release --------------------------------------------------------------


def test_the_structs_of_the_engine_are_those_of_its_release(real: engines.Engine) -> None:
    taken = Binding(real.library)
    assert taken.release in binding.RELEASES
    assert taken.llama_context_default_params().n_ctx == 512


SOURCE = """
#include <stddef.h>
#include <string.h>
const char * llama_version(void) { return VERSION; }
const char * ggml_version(void) { return GGML; }
typedef struct { char bytes[MODEL_SIZE]; } model;
typedef struct { char bytes[CONTEXT_SIZE]; } context;
static const unsigned char m[] = { MODEL }, c[] = { CONTEXT };
model llama_model_default_params(void) { model x; memset(&x, 0, sizeof x);
    memcpy(&x, m, sizeof m); return x; }
context llama_context_default_params(void) { context x; memset(&x, 0, sizeof x);
    memcpy(&x, c, sizeof c); return x; }
typedef struct { int n; void * token; void * rest[5]; } batch;
batch llama_batch_get_one(void * token, int n) { batch x; memset(&x, 0, sizeof x);
    x.n = n; x.token = token; return x; }
"""


def fake(folder: Path, real: Path, **changes: object) -> Path:
    """A library with the real one's version and defaults, some of which are changed."""
    taken = Binding(real)
    model = bytes(taken.llama_model_default_params())
    context = bytes(taken.llama_context_default_params())
    told: dict[str, object] = {
        "VERSION": f'"{taken.version}"',
        "GGML": f'"{taken.ggml_version}"',
        "MODEL_SIZE": len(model),
        "CONTEXT_SIZE": len(context),
        "MODEL": ",".join(map(str, model)),
        "CONTEXT": ",".join(map(str, context)),
        **changes,
    }
    lines = [f"#define {name} {value}" for name, value in told.items()]
    lines += [SOURCE]
    lines += [f"void {name}(void) {{}}" for name in binding.FUNCTIONS]
    lines += ["void llama_model_load_from_file(void) {}", "void llama_init_from_model(void) {}"]
    source = folder / "fake.c"
    source.write_text("\n".join(lines))
    made = folder / "libllama.so"
    assert COMPILER is not None
    subprocess.run([COMPILER, "-shared", "-fPIC", "-w", "-o", made, source], check=True)
    return made


@needs_compiler
def test_a_library_that_keeps_to_the_layout_is_taken(real: engines.Engine, tmp_path: Path) -> None:
    assert Binding(fake(tmp_path, real.library)).release is Binding(real.library).release


@needs_compiler
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"VERSION": '"0.9.0"'}, "is llama.cpp 0.9.0 with ggml"),
        ({"GGML": '"0.99.0"'}, "with ggml 0.99.0"),
    ],
)
def test_another_release_is_refused_with_what_would_fit(
    changes: dict[str, object],
    said: str,
    real: engines.Engine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = refused(fake(tmp_path, real.library, **changes), monkeypatch)
    assert said in message and "use one that fits: pip install xllamacpp==" in message


def shifted(raw: bytes, at: int) -> str:
    """As after a release that put one more field of eight bytes somewhere."""
    return ",".join(map(str, raw[:at] + bytes(8) + raw[at:]))


@needs_compiler
def test_a_field_more_or_moved_is_noticed_wherever_it_is(
    real: engines.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that was not raised must not be enough."""
    taken = Binding(real.library)
    for name in ("model", "context"):
        raw = bytes(getattr(taken, f"llama_{name}_default_params")())
        for at in range(0, len(raw) + 1, 8):
            folder = tmp_path / f"{name}-{at}"
            folder.mkdir()
            changes = {f"{name.upper()}_SIZE": len(raw) + 8, name.upper(): shifted(raw, at)}
            made = fake(folder, real.library, **changes)
            if platform.machine() == "x86_64" or at < len(raw) // 2:
                assert f"says it is llama.cpp {taken.version}, but" in refused(made, monkeypatch)


@needs_compiler
def test_a_library_without_a_function_is_refused_by_its_name(
    real: engines.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = fake(tmp_path, real.library)
    left = {k: v for k, v in binding.FUNCTIONS.items() if k != "llama_decode"}
    with monkeypatch.context() as patch:
        patch.setattr(binding, "FUNCTIONS", left)
        folder = tmp_path / "less"
        folder.mkdir()
        made = fake(folder, real.library)
    assert "has no llama_decode" in refused(made, monkeypatch)


# -- what reaches into ggml's memory -----------------------------------------------------------


def test_what_reaches_into_memory_is_off_on_engines_it_was_not_proved_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(fence.PLAIN, raising=False)
    proved = (library.C.version, library.C.ggml_version) in fence.PROVED_ON
    assert (fence.hacks() is not None) == proved
    monkeypatch.setattr(fence, "PROVED_ON", frozenset())
    assert fence.hacks() is None


def test_one_switch_turns_it_off_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    here = frozenset({(library.C.version, library.C.ggml_version)})
    monkeypatch.setattr(fence, "PROVED_ON", here)
    monkeypatch.setenv(fence.PLAIN, "0")
    assert fence.hacks() is not None
    monkeypatch.setenv(fence.PLAIN, "1")
    assert fence.hacks() is None


def test_all_of_it_may_be_absent(tiny_llama: Path) -> None:
    """In a process that cannot import it, a context computes all the same."""
    code = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("parlay.llama.hacks"):
            raise ModuleNotFoundError(name=name)
sys.meta_path.insert(0, Absent())
from pathlib import Path
from parlay.decoding.span import Span
from parlay.llama import fence
from parlay.llama.context import Context
from parlay.llama.library import C
from parlay.llama.model import Model
from parlay.llama.settings import ContextSettings, ModelSettings
fence.PROVED_ON = frozenset({{(C.version, C.ggml_version)}})
with Model(Path({str(tiny_llama)!r}), ModelSettings()) as model:
    context = Context(model, ContextSettings(64, threads=1))
    print(len(context.decode([Span(0, 0, [5, 6], 2)])[0]))
    context.close()
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (told.returncode, told.stdout.strip()) == (0, "2"), told.stderr


def test_an_optional_function_that_is_missing_is_none() -> None:
    assert library.C.optional("llama_no_such_function", None) is None
    assert library.C.optional("llama_max_devices", ctypes.c_size_t)() > 0
