"""Which keys of a deployment a gateway cannot act on: named at the start, never dropped in silence.

Pure; knows the deployment's keys.
"""

from __future__ import annotations

from parlay.deployment import Deployment

_MODEL = ("target", "drafter", "tokenizer")
_SERVER = ("max_prompt_tokens", "parse_special_in_messages", "share_prompt_cache")
_MONITORING = (
    "alert_on_acceptance_drop",
    "acceptance_drop",
    "cache_compaction_interval",
    "log_prompts",
    "memory_pressure_pct",
)


def left_behind(deployment: Deployment) -> str:
    """The keys that are set and have no effect, with commas between; empty: there are none."""
    found = [f"model.{key}" for key in _MODEL if key in deployment.model.model_fields_set]
    found += [f"runtime.{key}" for key in sorted(deployment.runtime.model_fields_set)]
    found += [f"server.{key}" for key in _SERVER if key in deployment.server.model_fields_set]
    set_ = deployment.monitoring.model_fields_set
    found += [f"monitoring.{key}" for key in _MONITORING if key in set_]
    for rule in deployment.routes:
        given = {"draft": rule.draft, "window": rule.window}
        found += [f"routes.{rule.name}.{key}" for key, value in given.items() if value is not None]
    return ", ".join(found)
