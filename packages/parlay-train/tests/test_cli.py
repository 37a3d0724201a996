"""`parlay train`: a drafter from a tiny target, resumed and recorded; mistakes are one line."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import gguf
import pytest
from typer.testing import CliRunner, Result

from parlay.pairing.records import find_drafter
from parlay_train.cli import app
from parlay_train.found import FoundText

SMALL = ["--preset", "tiny", "--tokens", "3000", "--slots", "16", "-c", "128"]
SMALL += ["--batch-tokens", "1024"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLAY_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("PARLAY_CACHE", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def few_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """To set tasks over: reading all of Python's own takes longer than the training."""
    texts = FoundText(
        ("The sea is wide and the rain is old. " * 8,), ("def one():\n    pass\n" * 12,)
    )
    monkeypatch.setattr("parlay_train.writing_prompts.found_texts", lambda: texts)


def test_a_drafter_is_made_recorded_and_made_again_without_writing_anew(
    tiny_llama: Path, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "drafter.gguf"
    command = [str(tiny_llama), "-o", str(out), *SMALL, "--json", "--passes"]
    first = run(*command, "1", "--file-type", "q4_0", "--file-type", "f16")
    assert first.exit_code == 0, first.output
    told = json.loads(first.stdout)
    assert [Path(path).name for path in told["files"]] == ["drafter.gguf", "drafter-f16.gguf"]
    assert told["training"]["held_out"].keys() == {"f16", "q8_0", "q4_0"}
    found = find_drafter(tiny_llama)
    assert found is not None and Path(found.draft) == out.resolve()
    shards = sorted((tmp_path / "drafter.train" / "corpus").glob("*.npz"))
    again = run(*command, "2")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["training"]["steps"] > told["training"]["steps"]
    assert sorted((tmp_path / "drafter.train" / "corpus").glob("*.npz")) == shards


def test_a_block_drafter_is_made_of_the_same_text(tiny_llama: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "block.gguf"
    made = run(str(tiny_llama), "-o", str(out), *SMALL, "--kind", "dflash", "--passes", "1")
    assert made.exit_code == 0, made.output
    assert gguf.GGUFReader(out).get_field("general.architecture").contents() == "dflash"
    found = find_drafter(tiny_llama)
    assert found is not None and Path(found.draft) == out.resolve()


def test_a_drafter_is_adapted_from_another_at_a_lower_rate(
    tiny_llama: Path, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    first, second = tmp_path / "first.gguf", tmp_path / "second.gguf"
    made = run(str(tiny_llama), "-o", str(first), *SMALL, "--passes", "2", "--json")
    assert made.exit_code == 0, made.output
    before = json.loads(made.stdout)["training"]
    command = [str(tiny_llama), "-o", str(second), *SMALL[2:], "--passes", "1"]
    adapted = run(*command, "--start", str(first), "--json")
    assert adapted.exit_code == 0, adapted.output
    told = json.loads(adapted.stdout)["training"]
    assert told["shape"] | {"eps": 0} == before["shape"] | {"eps": 0}
    assert told["recipe"]["learning_rate"] == before["recipe"]["learning_rate"] / 4
    assert told["start"] == "the weights of first.gguf"
    assert told["before"]["n_tokens"] > 0
    found = find_drafter(tiny_llama)
    assert found is not None and Path(found.draft) == second.resolve()
    # The same command goes on from its checkpoint.
    again = run(*command, "--start", str(first), "--json")
    assert json.loads(again.stdout)["training"]["start"] == "a checkpoint"
    refused(tiny_llama, first, "overwrite the one it starts from", "--start", str(first))
    refused(tiny_llama, second, "not of preset 'small'", "--start", str(first), "--preset", "small")


def test_the_help_has_an_example() -> None:
    assert "parlay train target.gguf -o drafter.gguf" in run("--help").stdout


def test_without_pytorch_it_says_what_to_install(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    refused(tiny_llama, tmp_path / "d.gguf", "pip install torch")


def test_mistakes_are_one_line(tiny_llama: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "d.gguf"
    refused(tmp_path / "none.gguf", out, "does not exist")
    refused(tiny_llama, tmp_path / "none" / "d.gguf", "no folder")
    refused(tiny_llama, tmp_path / "d.bin", "end in .gguf")
    refused(tiny_llama, tiny_llama, "overwrite its target")
    refused(tiny_llama, out, "no preset", "--preset", "huge")
    refused(tiny_llama, out, "llama, dflash", "--kind", "magic")
    refused(tiny_llama, out, "no preset", "--kind", "dflash", "--preset", "wide")
    refused(tiny_llama, out, "unknown file type", "--file-type", "q3")
    refused(tiny_llama, out, "does not exist", "--start", str(tmp_path / "none.gguf"))
    refused(tiny_llama, out, "vocabulary", "--start", "default")
    refused(tiny_llama, out, "for --kind llama", "--start", "default", "--kind", "dflash")
    refused(tiny_llama, out, "cannot be read", "--prompts", str(tmp_path / "none.jsonl"))


def test_a_base_model_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    base = without_template(tiny_llama, tmp_path / "base.gguf")
    refused(base, tmp_path / "d.gguf", "no chat template")


def refused(target: Path, out: Path, why: str, *more: str) -> None:
    result = run(str(target), "-o", str(out), *SMALL, *more)
    message = str(result.exception)
    assert result.exit_code != 0 and why in message and "\n" not in message, result.output


def without_template(source: Path, made: Path) -> Path:
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(made, "llama")
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "tokenizer.chat_template"):
            continue
        array = field.types[0] == gguf.GGUFValueType.ARRAY
        inner = field.types[-1] if array else None
        writer.add_key_value(key, field.contents(), field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return made
