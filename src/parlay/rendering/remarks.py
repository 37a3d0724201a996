"""The comment that heads every rendered file: what it is for, and what it does not carry over.

Each remark is one line, whatever it says: a comment must not be able to end early.
"""

from __future__ import annotations

from parlay.rendering.launch import LaunchPlan


def remarks(plan: LaunchPlan) -> list[str]:
    """Lines without the sign that makes them a comment."""
    lines = [f"{plan.name} on {plan.engine}, whose flags are those of {plan.version}"]
    for secret in plan.secrets:
        place = "file" if secret.is_file else "variable"
        lines.append(f"needs: {secret.holds} in the {place} {secret.name}; it is in no argument")
    lines += [f"note: {note}" for note in plan.notes]
    lines += [f"not carried over: {e.key}: {e.how}" for e in plan.left if e.given]
    defaults = _shortened(plan)
    if defaults:
        lines.append(f"not carried over, and not set in the file: {', '.join(defaults)}")
    return [" ".join(line.split()) for line in lines]


def _shortened(plan: LaunchPlan) -> list[str]:
    """The keys left at their defaults; a section that is left whole is named once."""
    keys = [entry.key for entry in plan.left if not entry.given]
    others = {e.key.partition(".")[0] for e in plan.entries if e.carried or e.given}
    whole = (key if key.partition(".")[0] in others else _section(key) for key in keys)
    return list(dict.fromkeys(whole))


def _section(key: str) -> str:
    section, dot, _ = key.partition(".")
    return f"{section}.*" if dot else key


def comment(plan: LaunchPlan) -> str:
    """The same as lines that begin with #."""
    return "".join(f"# {line}\n" for line in remarks(plan))
