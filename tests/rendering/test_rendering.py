"""Every key is accounted for, every format can be read back, and nothing secret is written."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from parlay.cli.main import app
from parlay.deployment import Deployment
from parlay.rendering.engines import ENGINES, RenderError, keys_of, launch
from parlay.rendering.files import FORMATS, render
from tests import tiny_drafters

SECRET = "sk-do-not-print"
HOSTILE = ("it's", "$(rm -rf /)", '"; reboot; "', "a%hb", "`id`", "${HOME}", "a\\b", "x y", "#c")


def deployment(target: str = "org/big", drafter: str = "ngram", **sections: Any) -> Deployment:
    model = {"target": target, "drafter": drafter, "alias": ["big"], **sections.pop("model", {})}
    runtime = {"speculative_window": 5, "controller": "fixed", **sections.pop("runtime", {})}
    server = {"api_keys": [SECRET], **sections.pop("server", {})}
    content = {"model": model, "runtime": runtime, "server": server, **sections}
    return Deployment.model_validate(content)


def for_engine(engine: str, **sections: Any) -> Deployment:
    return deployment("/models/big.gguf" if engine == "llama-server" else "org/big", **sections)


def after(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


# -- no key is dropped ------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_every_key_of_the_file_is_carried_over_or_listed_with_a_reason(engine: str) -> None:
    found = for_engine(engine)
    made = launch(engine, found)
    assert {*made.carried, *made.left} == set(keys_of(found))
    assert not made.carried.keys() & made.left.keys()
    assert all(made.left.values())


@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "parlay"])
@pytest.mark.parametrize("form", FORMATS)
def test_what_the_file_sets_and_the_engine_cannot_do_is_in_every_file(
    engine: str, form: str
) -> None:
    found = for_engine(engine, runtime={"min_token_acceptance": 0.5})
    for text in render(found, f"{engine}:{form}").values():
        assert "# not carried over: runtime.min_token_acceptance:" in text


def test_our_own_command_says_all_that_the_file_says() -> None:
    found = deployment(runtime={"llama": {"flash-attn": "on"}}, routes=[{"name": "all"}])
    made = launch("parlay", found)
    assert 'runtime.llama.flash-attn="on"' in made.argv
    assert 'model.target="org/big"' in made.argv and "routes" in made.left


# -- speculation ------------------------------------------------------------------------------


def test_vllm_gets_its_methods_as_a_configuration() -> None:
    methods: dict[str, dict[str, Any]] = {
        "ngram": {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4},
        "suffix": {"method": "suffix"},
        "org/small": {"method": "draft_model", "model": "org/small"},
    }
    for drafter, wanted in methods.items():
        argv = launch("vllm", deployment(drafter=drafter)).argv
        config = json.loads(after(argv, "--speculative-config"))
        assert config == {**wanted, "num_speculative_tokens": 5}
        # vLLM takes this flag with a value only.
        assert after(argv, "--per-request-spec-decode-metrics") == "summary"
    assert "--speculative-config" not in launch("vllm", deployment(drafter="none")).argv


def test_a_drafter_s_kind_is_read_from_its_file(tmp_path: Path) -> None:
    head = tiny_drafters.write_dflash(tmp_path / "head.gguf")
    found = deployment("/models/big.gguf", f"suffix,{head}")
    argv = launch("llama-server", found).argv
    assert after(argv, "--spec-type") == "draft-dflash,ngram-map-k"
    assert after(argv, "--spec-draft-n-max") == "5" and after(argv, "--spec-draft-model") == str(
        head
    )


def test_sglang_gets_chains() -> None:
    argv = launch("sglang", deployment(drafter="org/small")).argv
    assert after(argv, "--speculative-algorithm") == "STANDALONE"
    assert after(argv, "--speculative-num-draft-tokens") == "6"


def test_llama_cpp_s_settings_go_as_they_are() -> None:
    flags = {"flash-attn": "on", "n-cpu-moe": 3, "mmap": False, "tensor-split": "3,1"}
    argv = launch("llama-server", for_engine("llama-server", runtime={"llama": flags})).argv
    assert after(argv, "--flash-attn") == "on" and after(argv, "--n-cpu-moe") == "3"
    assert "--no-mmap" in argv and after(argv, "--tensor-split") == "3,1"


@pytest.mark.parametrize(
    ("engine", "changes", "reason"),
    [
        ("vllm", {"target": "/m/a.gguf"}, "vLLM does not read a.gguf"),
        ("sglang", {"drafter": "/m/d.gguf"}, "SGLang does not read d.gguf"),
        ("sglang", {"runtime": {"gpu_layers": 0}}, "needs a GPU"),
        ("llama-server", {"target": "org/big"}, "reads GGUF files"),
        ("tgi", {}, "no engine 'tgi'"),
    ],
)
def test_what_is_known_to_fail_is_refused(
    engine: str, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(RenderError, match=reason):
        launch(engine, deployment(**changes))


# -- formats ----------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("form", FORMATS)
def test_no_key_is_written_and_its_lack_is_noticed(engine: str, form: str) -> None:
    for text in render(for_engine(engine), f"{engine}:{form}").values():
        assert SECRET not in text and "_API_KEY" in text


@settings(max_examples=30)
@given(st.sampled_from(HOSTILE), st.sampled_from(HOSTILE))
def test_hostile_names_stay_words_in_every_format(one: str, other: str) -> None:
    found = deployment(f"org/{one}", model={"alias": [other]})
    argv = launch("vllm", found).argv
    (script,) = render(found, "vllm:command").values()
    words = shlex.split(script[script.index("exec ") :].replace("\\\n", " "))
    assert words[1:] == argv
    (text,) = render(found, "vllm:compose").values()
    (service,) = yaml.safe_load(text)["services"].values()
    shown = [*service["entrypoint"], *service["command"]]
    assert [word.replace("$$", "$") for word in shown][:3] == argv[:3]
    (text,) = render(found, "vllm:kubernetes").values()
    pod = list(yaml.safe_load_all(text))[1]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    shown = [*container["command"], *container["args"]]
    assert [word.replace("$$(", "$(") for word in shown][:3] == argv[:3]


@pytest.mark.skipif(shutil.which("sh") is None, reason="no shell")
def test_a_script_stops_where_the_key_is_missing(tmp_path: Path) -> None:
    (text,) = render(deployment(), "vllm").values()
    path = tmp_path / "run.sh"
    path.write_text(text)
    done = subprocess.run(["sh", path], capture_output=True, text=True, check=False, env={})
    assert done.returncode != 0 and "set it to the API key" in done.stderr


def test_a_public_address_without_a_key_is_refused() -> None:
    found = deployment(server={"host": "0.0.0.0", "api_keys": []})
    with pytest.raises(RenderError, match="is public and there is no key"):
        render(found, "systemd")
    with pytest.raises(RenderError, match="is public"):  # in a container it always is
        render(deployment(server={"api_keys": []}), "compose")


def test_a_line_break_in_a_name_is_refused() -> None:
    with pytest.raises(RenderError, match="control character"):
        render(deployment("org/a\nb"), "vllm")


def test_the_verb_writes_files_or_prints_them(tmp_path: Path) -> None:
    def run(*words: object) -> Any:
        return CliRunner().invoke(app, ["serve", "org/big:Q4_0", *map(str, words)])

    assert "ExecStart=" in run("--render", "systemd").stdout
    done = run("--render", "kubernetes", "--set", "server.api_keys=a", "--out", tmp_path / "k")
    assert done.exit_code == 0 and list((tmp_path / "k").glob("*.yaml"))
    assert "known: command" in str(run("--render", "vllm:helm").exception)
