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

from parlay.deployment import Deployment, Section
from parlay.models import BLOCK_DRAFTER
from parlay.rendering.launch import RenderError, service_name
from parlay.rendering.render import ENGINES, FORMATS, Rendered, render
from tests import tiny_drafters

SECRET = "sk-do-not-print"
HOSTILE = (
    "it's",
    "$(rm -rf /)",
    '"; reboot; "',
    "a%hb",
    "`id`",
    "${HOME}",
    "a\\b",
    "x y",
    "#c",
    "&&",
)


def deployment(**sections: Any) -> Deployment:
    return Deployment.model_validate(sections)


def one(**scale: Any) -> Deployment:
    """A deployment every engine can run."""
    return deployment(
        model={"target": "/models/big.gguf", "drafter": "suffix", "alias": ["big"]},
        runtime={"speculative_window": 5},
        server={"api_keys": [SECRET]},
        scale=scale,
    )


def for_engine(engine: str, **scale: Any) -> Deployment:
    return one(**({} if engine == "llama-server" else {"target": "org/big"}), **scale)


def argv(found: Rendered, role: int = 0) -> list[str]:
    return list(found.plan.commands[role].argv)


def after(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


# -- no key is dropped ------------------------------------------------------------------------


def all_keys() -> set[str]:
    found = set()
    for name, info in Deployment.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            found |= {f"{name}.{key}" for key in kind.model_fields}
        else:
            found.add(name)
    return found


@pytest.mark.parametrize("engine", ENGINES)
def test_every_key_of_the_file_is_carried_over_or_listed(engine: str) -> None:
    told = render(for_engine(engine), engine).plan.as_dict()
    carried, left = set(told["carried"]), {entry["key"] for entry in told["not_carried"]}
    assert carried | left == all_keys()
    assert not carried & left
    assert all(entry["why"] for entry in told["not_carried"])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("form", [form for form in FORMATS if form != "ray"])
def test_what_the_file_sets_and_the_engine_cannot_do_is_in_every_file(
    engine: str, form: str
) -> None:
    wanted = for_engine(engine)
    runtime = wanted.runtime.model_copy(update={"min_token_acceptance": 0.5})
    runtime.model_fields_set.add("min_token_acceptance")
    server = wanted.server.model_copy(update={"api_keys": ()})
    changed = wanted.model_copy(update={"runtime": runtime, "server": server})
    if form == "kubernetes":
        changed = wanted.model_copy(update={"runtime": runtime})
    for text in render(changed, engine, form).files.values():
        assert "# not carried over: runtime.min_token_acceptance:" in text


# -- speculation ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "model", "wanted"),
    [
        ("ngram", None, {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}),
        ("suffix", None, {"method": "suffix"}),
        ("draft_model", "org/small", {"method": "draft_model", "model": "org/small"}),
        ("eagle3", "org/head", {"method": "eagle3", "model": "org/head"}),
        ("dflash", "org/flash", {"method": "dflash", "model": "org/flash"}),
        ("mtp", None, {"method": "mtp"}),
    ],
)
def test_vllm_gets_every_method_as_its_configuration(
    method: str, model: str | None, wanted: dict[str, Any]
) -> None:
    found = render(for_engine("vllm", method=method, drafter=model), "vllm")
    config = json.loads(after(argv(found), "--speculative-config"))
    assert config == {**wanted, "num_speculative_tokens": 5}
    # vLLM takes this flag with a value only.
    assert after(argv(found), "--per-request-spec-decode-metrics") == "summary"


@pytest.mark.parametrize(
    ("method", "drafter", "kind"),
    [
        ("ngram", None, "ngram-simple"),
        ("draft_model", "/models/small.gguf", "draft-simple"),
        ("eagle3", "/models/head.gguf", "draft-eagle3"),
        ("dflash", "/models/flash.gguf", "draft-dflash"),
        ("mtp", None, "draft-mtp"),
    ],
)
def test_llama_server_gets_its_types(method: str, drafter: str | None, kind: str) -> None:
    words = argv(render(one(method=method, drafter=drafter), "llama-server"))
    assert kind in after(words, "--spec-type").split(",")
    assert after(words, "--spec-draft-n-max") == "5"
    assert ("--spec-draft-model" in words) == (drafter is not None)


def test_a_shipped_drafter_is_rendered_by_its_file_and_kind() -> None:
    model = {"target": "/m/smollm2.gguf", "drafter": "default-block"}
    words = argv(render(deployment(model=model), "llama-server"))
    assert after(words, "--spec-type") == "draft-dflash"
    assert after(words, "--spec-draft-model") == str(BLOCK_DRAFTER)


def test_llama_server_bets_with_several_proposers_and_the_others_say_they_do_not() -> None:
    model = {"target": "/m/big.gguf", "drafter": "suffix,/m/small.gguf"}
    words = argv(render(deployment(model=model), "llama-server"))
    assert after(words, "--spec-type") == "draft-simple,ngram-map-k"
    scale = {"target": "org/big", "drafter": "org/small"}
    notes = render(deployment(model=model, scale=scale), "vllm").plan.notes
    assert any("suffix left out" in note for note in notes)


def test_sglang_drafts_chains_of_the_window() -> None:
    words = argv(render(for_engine("sglang", method="eagle3", drafter="org/head"), "sglang"))
    assert after(words, "--speculative-algorithm") == "EAGLE3"
    assert after(words, "--speculative-num-steps") == "5"
    assert after(words, "--speculative-num-draft-tokens") == "6"
    assert after(words, "--speculative-eagle-topk") == "1"


@pytest.mark.parametrize("engine", ENGINES)
def test_no_speculation_leaves_no_flag_of_it(engine: str) -> None:
    words = argv(render(for_engine(engine, method="none"), engine))
    assert not [word for word in words if "spec" in word]


def test_a_window_of_the_controller_is_told_not_to_be_carried_over() -> None:
    found = render(deployment(model={"target": "default"}), "vllm").plan
    assert "runtime.speculative_window" in {entry.key for entry in found.left}


# -- what is known to fail --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "scale", "words"),
    [
        ("vllm", {"pipeline_parallel": 2}, "over pipeline stages"),
        ("vllm", {"pipeline_parallel": 2, "method": "draft_model", "drafter": "a/b"}, "49355"),
        ("sglang", {"pipeline_parallel": 2}, "pipeline stages"),
        ("sglang", {"data_parallel": 2, "nodes": 2, "head": "h"}, "gateway"),
        ("llama-server", {"nodes": 2, "head": "h", "tensor_parallel": 2}, "one machine"),
        ("llama-server", {"data_parallel": 2}, "gateway"),
        ("llama-server", {"tensor_parallel": 2, "pipeline_parallel": 2}, "not both"),
        ("vllm", {"nodes": 2, "tensor_parallel": 2}, "scale.head"),
        ("vllm", {"nodes": 2, "head": "h", "tensor_parallel": 3}, "evenly"),
        ("vllm", {"nodes": 2, "head": "h", "data_parallel": 3}, "evenly"),
        ("vllm", {"method": "eagle3"}, "scale.drafter"),
    ],
)
def test_combinations_known_to_fail_are_refused_with_the_reason(
    engine: str, scale: dict[str, Any], words: str
) -> None:
    with pytest.raises(RenderError, match=words):
        render(for_engine(engine, **scale), engine)


def test_eagle3_over_pipeline_stages_is_left_to_vllm() -> None:
    wanted = for_engine("vllm", method="eagle3", drafter="a/b", pipeline_parallel=2)
    assert "--pipeline-parallel-size" in argv(render(wanted, "vllm"))


def test_a_gguf_file_is_refused_where_it_cannot_be_read() -> None:
    for engine in ("vllm", "sglang"):
        with pytest.raises(RenderError, match=r"scale\.target"):
            render(one(), engine)
    with pytest.raises(RenderError, match="GGUF"):
        render(one(target="org/big"), "llama-server")


def test_a_public_address_without_a_key_is_refused_as_our_own_server_does() -> None:
    open_ = {"target": "/m/big.gguf"}
    with pytest.raises(RenderError, match="public"):
        render(deployment(model=open_, server={"host": "0.0.0.0"}), "llama-server")
    with pytest.raises(RenderError, match="cluster"):
        render(deployment(model=open_), "llama-server", "kubernetes")
    allowed = {"host": "0.0.0.0", "allow_public_without_key": True}
    render(deployment(model=open_, server=allowed), "llama-server", "kubernetes")


@pytest.mark.parametrize("bad", ["a\nb", "a\x00b", "-x"])
def test_names_no_format_could_carry_are_refused(bad: str) -> None:
    with pytest.raises(RenderError):
        render(deployment(model={"target": "/m/b.gguf", "alias": [bad]}), "llama-server")


def test_unknown_engines_and_formats_are_named() -> None:
    with pytest.raises(RenderError, match="known: vllm"):
        render(one(), "tgi")
    with pytest.raises(RenderError, match="known: command"):
        render(one(), "vllm", "helm")


# -- several machines -------------------------------------------------------------------------


def test_two_nodes_share_one_model() -> None:
    wanted = for_engine("vllm", nodes=2, head="10.0.0.1", tensor_parallel=4)
    head, worker = (argv(render(wanted, "vllm"), i) for i in (0, 1))
    assert after(head, "--node-rank") == "0" and after(worker, "--node-rank") == "1"
    assert after(head, "--master-addr") == after(worker, "--master-addr") == "10.0.0.1"
    assert "--headless" in worker and "--headless" not in head


def test_two_nodes_of_replicas_count_their_ranks_through() -> None:
    wanted = for_engine("vllm", nodes=2, head="10.0.0.1", data_parallel=8)
    head, worker = (argv(render(wanted, "vllm"), i) for i in (0, 1))
    assert after(head, "--data-parallel-size-local") == "4"
    assert after(worker, "--data-parallel-start-rank") == "4"
    assert "--headless" in worker


def test_ray_starts_the_cluster_before_the_engine() -> None:
    wanted = for_engine("vllm", nodes=2, head="10.0.0.1", tensor_parallel=2)
    found = render(wanted, "vllm", "ray")
    head = found.files["big-head.sh"]
    assert head.index("ray start") < head.index("exec vllm")
    assert "--distributed-executor-backend ray" in head and "--nnodes" not in head
    assert "--address=10.0.0.1:6379" in found.files["big-worker-1.sh"]
    with pytest.raises(RenderError, match="vLLM"):
        render(one(), "llama-server", "ray")


def test_sglang_joins_its_nodes() -> None:
    wanted = for_engine("sglang", nodes=2, head="h", tensor_parallel=2)
    words = argv(render(wanted, "sglang"), 1)
    assert after(words, "--dist-init-addr") == "h:5000" and after(words, "--node-rank") == "1"


def test_compose_refuses_two_machines() -> None:
    wanted = for_engine("vllm", nodes=2, head="h", tensor_parallel=2)
    with pytest.raises(RenderError, match="one machine"):
        render(wanted, "vllm", "compose")


# -- formats ----------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("form", FORMATS)
def test_no_key_is_ever_written(engine: str, form: str) -> None:
    try:
        found = render(for_engine(engine), engine, form)
    except RenderError:
        return  # not every engine has every format
    for text in (*found.files.values(), json.dumps(found.plan.as_dict())):
        assert SECRET not in text


names = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), min_size=1, max_size=30)


@given(st.lists(st.one_of(st.sampled_from(HOSTILE), names), min_size=1, max_size=3))
@settings(max_examples=60)
def test_a_shell_reads_back_the_arguments_whatever_is_in_a_name(aliases: list[str]) -> None:
    wanted = deployment(model={"target": "/m/big.gguf", "alias": aliases})
    try:
        found = render(wanted, "llama-server")
    except RenderError:
        return  # control characters, empty names and options are refused
    (text,) = found.files.values()
    command = text[text.index("\nexec ") + 6 :].replace(" \\\n", " ")  # lines that go on
    assert shlex.split(command) == argv(found)
    service = yaml.safe_load(render(wanted, "llama-server", "compose").files["compose.yaml"])
    (inside,) = service["services"].values()
    words = [word.replace("$$", "$") for word in inside["command"]]
    assert after(words, "--alias") == after(argv(found), "--alias")
    assert all("$" not in word.replace("$$", "") for word in inside["command"])


def test_a_real_shell_runs_nothing_but_the_command(tmp_path: Path) -> None:
    wanted = deployment(model={"target": "/m/big.gguf", "alias": list(HOSTILE)})
    (text,) = render(wanted, "llama-server").files.values()
    (tmp_path / "llama-server").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "llama-server").chmod(0o755)
    (tmp_path / "start.sh").write_text(text)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    ran = subprocess.run(
        ["/bin/sh", "start.sh"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.splitlines() == argv(render(wanted, "llama-server"))[1:]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["llama-server", "start.sh"]


def test_a_script_stops_where_the_key_is_missing(tmp_path: Path) -> None:
    (text,) = render(for_engine("vllm"), "vllm").files.values()
    ran = subprocess.run(
        ["/bin/sh", "-c", text], env={}, capture_output=True, text=True, check=False
    )
    assert ran.returncode != 0 and "VLLM_API_KEY" in ran.stderr


def test_compose_has_what_it_needs() -> None:
    found = render(for_engine("vllm", tensor_parallel=2), "vllm", "compose")
    content = yaml.safe_load(found.files["compose.yaml"])
    service = content["services"]["big"]
    assert service["image"] == "vllm/vllm-openai:v0.32.0"
    assert service["entrypoint"] == ["vllm"] and service["command"][0] == "serve"
    assert service["ports"] == ["127.0.0.1:8080:8080"]
    assert after(service["command"], "--host") == "0.0.0.0"
    assert service["environment"]["VLLM_API_KEY"].startswith("${VLLM_API_KEY:?")
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device["count"] == 2 and device["capabilities"] == ["gpu"]
    assert set(content) <= {"name", "services", "volumes", "secrets"}
    sglang = yaml.safe_load(render(for_engine("sglang"), "sglang", "compose").files["compose.yaml"])
    assert sglang["services"]["big"]["secrets"][0]["source"] in sglang["secrets"]


def test_kubernetes_has_probes_cards_and_a_secret_that_must_exist() -> None:
    (text,) = render(for_engine("vllm", tensor_parallel=2), "vllm", "kubernetes").files.values()
    manifests = {m["kind"]: m for m in yaml.safe_load_all(text)}
    assert set(manifests) == {"Service", "Deployment"}
    assert all(m["apiVersion"] and m["metadata"]["name"] for m in manifests.values())
    pod = manifests["Deployment"]["spec"]["template"]
    assert manifests["Service"]["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 2}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": "http"}
    (key,) = container["env"]
    assert key["valueFrom"]["secretKeyRef"] == {"name": "big-keys", "key": "VLLM_API_KEY"}
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["spec"]["volumes"]}


def test_kubernetes_gives_every_node_its_own_set_and_the_head_a_name() -> None:
    wanted = for_engine("vllm", nodes=2, tensor_parallel=2)
    (text,) = render(wanted, "vllm", "kubernetes").files.values()
    manifests = list(yaml.safe_load_all(text))
    sets = [m for m in manifests if m["kind"] == "StatefulSet"]
    assert [m["metadata"]["name"] for m in sets] == ["big-head", "big-worker-1"]
    worker = sets[1]["spec"]["template"]["spec"]["containers"][0]
    assert after(worker["args"], "--master-addr") == "big-head" and "readinessProbe" not in worker
    services = {m["metadata"]["name"] for m in manifests if m["kind"] == "Service"}
    assert services == {"big", "big-head"}


def test_a_model_on_the_cpu_asks_for_no_card() -> None:
    wanted = deployment(model={"target": "default", "drafter": "suffix"}, runtime={"gpu_layers": 0})
    (text,) = render(wanted, "vllm", "compose").files.values()
    assert "devices" not in text


def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    model = {"target": "org/big", "drafter": "suffix", "alias": ["big", *HOSTILE]}
    wanted = deployment(model=model, scale={"target": "org/big"}, server={"api_keys": [SECRET]})
    ((name, text),) = render(wanted, "vllm", "systemd").files.items()
    assert "EnvironmentFile=/etc/parlay/big.env" in text
    line = next(line for line in text.splitlines() if line.startswith("ExecStart="))
    assert "%%h" in line and "$$(rm" in line
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd here to check the unit with")
    (tmp_path / name).write_text(text)
    ran = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--generators=no", str(tmp_path / name)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    complaints = [line for line in ran.stderr.splitlines() if name in line]
    assert complaints == []


@pytest.mark.parametrize(
    ("text", "name"),
    [("Qwen3 32B!", "qwen3-32b"), ("", "model"), ("7b", "model-7b"), ("日本", "model")],
)
def test_service_names_are_what_every_tool_takes(text: str, name: str) -> None:
    assert service_name(text) == name


def test_settings_of_large_machines_reach_llama_server() -> None:
    runtime = {
        "tensor_split": [3, 1],
        "split_mode": "row",
        "main_gpu": 1,
        "ubatch": 256,
        "n_cpu_moe": 4,
        "tensor_overrides": ["a=CPU", "b=CUDA1"],
        "rope_scaling": "yarn",
        "rope_scale": 4,
        "context_size": "auto",
        "gpu_layers": "auto",
    }
    model = {"target": "/models/big.gguf", "drafter": "suffix", "lora": ["/models/l.gguf:0.5"]}
    given = deployment(model=model, runtime=runtime)
    words = argv(render(given, "llama-server"))
    pairs = {
        "--tensor-split": "3,1",
        "--split-mode": "row",
        "--main-gpu": "1",
        "--ubatch-size": "256",
        "--n-cpu-moe": "4",
        "--override-tensor": "a=CPU,b=CUDA1",
        "--rope-scaling": "yarn",
        "--rope-scale": "4",
        "--lora-scaled": "/models/l.gguf:0.5",
        "--ctx-size": "0",
        "--n-gpu-layers": "auto",
    }
    assert {flag: after(words, flag) for flag in pairs} == pairs
    every = deployment(model=model, runtime={"n_cpu_moe": -1})
    assert "--cpu-moe" in argv(render(every, "llama-server"))
    with pytest.raises(RenderError, match="comma"):
        render(
            deployment(model=model, runtime={"tensor_overrides": ["a{1,2}=CPU"]}), "llama-server"
        )


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("llama-server", ("--batch-size", "--ubatch-size")),
        ("vllm", ("--max-num-batched-tokens",)),
        ("sglang", ("--chunked-prefill-size",)),
    ],
)
def test_a_batch_that_is_left_to_the_machine_is_left_to_the_engine(
    engine: str, flags: tuple[str, ...]
) -> None:
    for rows, expected in ((2048, ["2048"] * len(flags)), (0, [])):
        words = argv(render(deployment(runtime={"batch": rows}), engine))
        assert [after(words, flag) for flag in flags if flag in words] == expected


def test_heads_are_rendered_by_what_their_files_hold(tmp_path: Path) -> None:
    target = str(tiny_drafters.write_nextn(tmp_path / "target.gguf"))
    kinds = {
        target: "draft-mtp",
        str(tiny_drafters.write_nextn(tmp_path / "head.gguf", only_head=True)): "draft-mtp",
        str(tiny_drafters.write_dflash(tmp_path / "b.gguf", markov_rank=8)): "draft-dspark",
        str(tiny_drafters.write_dflash(tmp_path / "d.gguf", n_candidates=7)): "draft-dflash",
    }
    for drafter, kind in kinds.items():
        given = deployment(model={"target": target, "drafter": drafter})
        words = argv(render(given, "llama-server"))
        assert after(words, "--spec-type") == kind
        assert ("--spec-draft-model" in words) == (drafter != target)
