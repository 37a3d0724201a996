"""From a deployment to a running engine: settings, controller, checks before anything is loaded.

Knows the deployment and the runtime; knows nothing of HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from parlay import __version__
from parlay.backend.answer_memory import check_memory_file
from parlay.backend.observer import Observer
from parlay.backend.slot_files import check_slot_folder
from parlay.control.choice import FixedWindow
from parlay.control.guard import Guarded, Limits, OnAlert
from parlay.deployment import Deployment, DeploymentError
from parlay.engine.engine import Engine
from parlay.engine.pricing import Pricing
from parlay.engine.settings import MAX_WINDOW, WIDE_WINDOW, EngineSettings, LoadSettings
from parlay.engine.start import drafter_files, fit_engine
from parlay.errors import LoadError
from parlay.hub.name import OllamaName, parse_name
from parlay.hub.resolving import resolve_model
from parlay.llama import library
from parlay.llama.model import Model
from parlay.parlay import known_draft, named_draft
from parlay.planning.devices import GIB
from parlay.planning.limits import Wanted, check_fits, engine_contexts, load_list, plan_here

_REMEMBERED = 1 << 16  # tokens: some 4 MB


def engine_settings(deployment: Deployment) -> EngineSettings:
    """How the engine opens: the target at once, a draft model afterwards."""
    runtime, given = deployment.runtime, load_settings(deployment)
    widest = max(1, given.context.rows_at_once // runtime.slots - 1)
    window = None if runtime.adaptive else min(runtime.fixed_window, widest)
    return replace(given, window=window).for_engine(
        resolve_model(deployment.model.target),
        named_draft(deployment.model.drafter),
        max_window=min(max(runtime.speculative_window or 0, MAX_WINDOW), widest),
        wide_window=WIDE_WINDOW if runtime.adaptive else 0,
        drafter_later=bool(drafter_paths(deployment)),
    )


def load_settings(deployment: Deployment) -> LoadSettings:
    """Keys that the Python interface has by the same name, and those that are said otherwise."""
    runtime = deployment.runtime
    given = runtime.loading() | {
        "remember_tokens": remembered_tokens(deployment),
        "lora": deployment.model.lora,
    }
    return LoadSettings(deployment.model.target, **given)


def remembered_tokens(deployment: Deployment) -> int:
    """As told; else some where one person serves themselves, and none for several with keys."""
    if "suffix" not in named_draft(deployment.model.drafter):
        return deployment.runtime.remember_tokens or 0
    given = deployment.runtime.remember_tokens
    alone = not deployment.server.api_keys and deployment.server.api_keys_file is None
    return (_REMEMBERED if alone else 0) if given is None else given


def drafter_paths(deployment: Deployment) -> tuple[Path, ...]:
    """The draft models' files, as many as are named."""
    return drafter_files(named_draft(deployment.model.drafter))


def with_known_drafter(deployment: Deployment) -> Deployment:
    """`auto` becomes what the manifest of pairs has for the target, beside the suffix proposer."""
    if deployment.model.drafter != "auto":
        return deployment
    names = known_draft(resolve_model(deployment.model.target))
    model = deployment.model.model_copy(update={"drafter": ",".join(names)})
    return deployment.model_copy(update={"model": model})


def with_name(deployment: Deployment) -> Deployment:
    """A model of Ollama's is called by its name: its file is called after a hash."""
    model = deployment.model
    name = parse_name(model.target)
    if model.alias or not isinstance(name, OllamaName):
        return deployment
    named = model.model_copy(update={"alias": (f"{name.model}:{name.tag}",)})
    return deployment.model_copy(update={"model": named})


def with_fit(deployment: Deployment) -> Deployment:
    """`auto` becomes the context and the layers that fit now, drafters counted; told in a line."""
    runtime = deployment.runtime
    context, layers = runtime.context_size == "auto", runtime.gpu_layers == "auto"
    if not context and not layers:
        return deployment
    found = fit_engine(engine_settings(deployment), context=context, layers=layers)
    numbers: dict[str, object] = {"context_size": found.context.context_size}
    if layers:
        experts = {"n_cpu_moe": found.model.n_cpu_moe}
        numbers["gpu_layers"] = found.model.gpu_layers
        numbers["llama"] = runtime.llama.model_copy(update=experts)
    return deployment.model_copy(update={"runtime": runtime.model_copy(update=numbers)})


def guarded(deployment: Deployment, pricing: Pricing | None, on_alert: OnAlert) -> Guarded:
    """Guard rails around a fixed window, or around the controller that prices rounds."""
    runtime = deployment.runtime
    window = runtime.speculative_window if pricing else runtime.fixed_window
    limits = Limits(
        min_token_acceptance=runtime.min_token_acceptance,
        min_sequence_acceptance=runtime.min_sequence_acceptance,
        fallback_threshold_pct=runtime.fallback_threshold_pct,
        max_window=window,
    )
    return Guarded(pricing or FixedWindow(runtime.fixed_window), limits, on_alert)


def open_engine(deployment: Deployment, after_pass: Callable[[], None]) -> tuple[Engine, Observer]:
    """Load the target; the first answer can be made when this returns."""
    check_files(deployment)
    controller = FixedWindow(deployment.runtime.fixed_window)  # until its guard rails are there
    engine = Engine(engine_settings(deployment), controller, after_pass=after_pass)
    observer = Observer()
    engine.listeners.append(observer)
    engine.readers.append(observer.observe_read)
    try:
        check_tokenizer(deployment, engine.model)
    except BaseException:
        engine.close()
        raise
    return engine, observer


def build() -> str:
    """Of what answers, in words."""
    return f"parlay {__version__}, {library.version()}"


def check_files(deployment: Deployment) -> None:
    """What can be said before minutes are spent on loading."""
    model = deployment.model
    target = resolve_model(model.target)
    if not target.is_file():
        raise DeploymentError(f"model.target: no file at {target}; check the path")
    if model.tokenizer is not None and not Path(model.tokenizer).is_file():
        raise DeploymentError(f"model.tokenizer: no file at {model.tokenizer}; leave the key out")
    check_writable(deployment)


def check_writable(deployment: Deployment) -> None:
    """What it will write, and must not write over."""
    kept, saved = deployment.runtime.remember_file, deployment.server.slot_save_path
    if kept:
        check_memory_file(Path(kept).expanduser())
    if saved is not None:
        check_slot_folder(Path(saved).expanduser())


def check_memory(deployment: Deployment) -> None:
    """Raise LoadError where the target has no room; what `parlay serve` would say at its start."""
    target, _ = _wanted(deployment, ())
    check_fits(target, budget_gb=deployment.runtime.vram_budget_gb)


def check_drafters(deployment: Deployment, paths: Sequence[Path]) -> None:
    """Raise LoadError where drafters have no room beside the loaded target: by the budget, which
    counts all models, or by what is free now, which the target has taken its part of."""
    _, (first, *others) = _wanted(deployment, paths)
    budget = deployment.runtime.vram_budget_gb
    needed = needed_gb(deployment, paths)
    if budget is not None and needed > budget:
        raise LoadError(f"the models take {needed:.2f} GB of memory, vram_budget_gb is {budget:g}")
    try:
        check_fits(first, others)
    except LoadError as error:
        raise LoadError(f"no memory for the drafter: {error.message}") from None


def needed_gb(deployment: Deployment, drafters: Sequence[Path] = ()) -> float:
    """What the models will take of the GPU, or of RAM where there is none, by the planner."""
    plan = plan_here(load_list(*_wanted(deployment, drafters)))
    # Prompts are kept only in what is left.
    spare = sum(item.n_bytes for item in plan.items if item.what == "prompt cache")
    return (plan.on_gpu if plan.has_gpu else plan.in_ram - spare) / GIB


def _wanted(deployment: Deployment, drafters: Sequence[Path]) -> tuple[Wanted, list[Wanted]]:
    """All models as the engine will load them."""
    settings = engine_settings(deployment)
    types = (settings.drafter_cache_type_k, settings.drafter_cache_type_v)
    context, own = engine_contexts(settings.context, settings.widest, types)
    target = Wanted(settings.target, settings.model, context)
    made = [Wanted(path, settings.drafter_model, own) for path in drafters]
    return target, [drafter.drafts_for(settings.target) for drafter in made]


# -- the tokenizer ----------------------------------------------------------------------------


def check_tokenizer(deployment: Deployment, model: Model) -> None:
    """A tokenizer file, when given, must be the target's own."""
    if deployment.model.tokenizer is None:
        return
    path = Path(deployment.model.tokenizer)
    for token, text in sorted(_tokens_in(path).items()):
        if not 0 <= token < model.vocabulary.size:
            raise _mismatch(path, f"it has a token {token}, the target {model.vocabulary.size}")
        own = model.vocabulary.raw_text(token)
        if own != text:
            raise _mismatch(path, f"token {token} is {text!r} there and {own!r} in the target")


def _mismatch(path: Path, reason: str) -> DeploymentError:
    return DeploymentError(
        f"model.tokenizer: {path.name} does not match the target: {reason}; leave the key out to"
        " use the target's own"
    )


def _tokens_in(path: Path) -> dict[int, str]:
    """Ids and texts of a tokenizer.json, or of a plain {text: id} or [text, ...] file."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        raise DeploymentError(f"model.tokenizer: {path.name} is no JSON file") from None
    vocab = content
    added: list[dict[str, Any]] = []
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        vocab, added = content["model"].get("vocab", {}), content.get("added_tokens", [])
    found = _pairs(vocab) | {token["id"]: token["content"] for token in added}
    if not found:
        raise DeploymentError(f"model.tokenizer: {path.name} holds no vocabulary")
    return found


def _pairs(vocab: Any) -> dict[int, str]:
    if isinstance(vocab, dict):
        return {int(token): str(text) for text, token in vocab.items() if isinstance(token, int)}
    if isinstance(vocab, list):
        texts = [item[0] if isinstance(item, list) else item for item in vocab]
        return {i: str(text) for i, text in enumerate(texts)}
    return {}
