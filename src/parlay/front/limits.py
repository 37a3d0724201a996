"""A request under a server's own limits, and what is said of what it asks beyond them.

Knows the deployment and asks; knows no door and no model.
"""

from __future__ import annotations

from msgspec import structs

from parlay.ask import Ask, Remark
from parlay.deployment import Deployment
from parlay.errors import BadRequest
from parlay.front.doors.door import Asked
from parlay.front.unknown import tell


def checked(
    asked: Asked, deployment: Deployment, owner: str, headers: dict[str, str]
) -> tuple[Ask, tuple[Remark, ...]]:
    """`owner`: by the key that was shown; `headers`: all of them, names in lower case."""
    server, ask = deployment.server, asked.ask
    if ask.n > server.max_n:
        raise BadRequest(f"n is {ask.n}; this server makes at most {server.max_n} answers")
    refuse = server.unknown_fields == "refuse"
    unknown = tell(asked.unknown, sorted(asked.known.model_fields), refuse=refuse)
    named = {name.lower() for rule in deployment.routes for name in rule.when.header or ()}
    ask = structs.replace(
        ask,
        headers={name: headers[name] for name in sorted(named) if name in headers},
        tag=headers.get("x-parlay-tag") or ask.tag,
        # Cached prompts may be shared, what was said to another never is.
        owner="" if server.share_prompt_cache else owner,
        memory=f"{owner}/{ask.memory}" if ask.memory else owner,
        time_limit_s=server.request_timeout_s,
    )
    return ask, (*asked.remarks, *unknown, *_shortened(asked, server.max_answer_tokens))


def _shortened(asked: Asked, most: int | None) -> tuple[Remark, ...]:
    """Where more tokens were asked for than this server answers with."""
    name, wanted = asked.length
    if most is None or wanted is None or wanted <= most:
        return ()
    message = f"{name} is {wanted}; this server answers with {most} tokens at most"
    return (Remark(name, message),)


def known_model(model: str, names: tuple[str, ...]) -> tuple[Remark, ...]:
    """What is said where the only model is not called so."""
    if not model or model in names:
        return ()
    return (Remark("model", f"no model {model!r:.80} here; {names[0]} answers"),)
