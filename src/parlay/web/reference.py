"""The page at `/docs`: the routes and their fields, made from the OpenAPI document.

Knows OpenAPI and HTML, no service. Without scripts and without the network: the usual pages load
theirs from elsewhere, which a server on a private machine cannot and should not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from parlay.web.html import escape, page, table

_METHODS = ("get", "post", "put", "delete")
_HEADS = ("field", "type", "default", "what it is")
_CSS = "h2 code { font-size: 1rem; } .method { text-transform: uppercase; color: var(--soft); }"

Schema = Mapping[str, Any]


def reference(document: Mapping[str, Any]) -> str:
    """The whole page."""
    info = document["info"]
    body = [
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        f"<p>{escape(info.get('summary', ''))}</p>",
        '<p class="soft">The same for programs: <a href="/openapi.json">openapi.json</a>.'
        " Fields that are not listed are told in the answer's warnings.</p>",
        *_routes(document),
    ]
    return page(f"{info['title']}: routes", "\n".join(body), css=_CSS)


def _routes(document: Mapping[str, Any]) -> Iterator[str]:
    schemas = document.get("components", {}).get("schemas", {})
    shown: dict[str, Schema] = {}
    for path, methods in document["paths"].items():
        for method in _METHODS:
            if method in methods:
                yield from _route(path, method, methods[method], schemas, shown)
    for name, schema in _nested(shown, schemas).items():
        yield f'<h2 id="{escape(name)}"><code>{escape(name)}</code></h2>'
        yield _fields(schema)


def _route(
    path: str, method: str, route: Schema, schemas: Schema, shown: dict[str, Schema]
) -> Iterator[str]:
    yield (
        f'<h2><span class="method">{escape(method)}</span> <code>{escape(path)}</code></h2>'
        f"<p>{escape(route.get('summary', ''))}</p>"
    )
    content = route.get("requestBody", {}).get("content", {}).get("application/json", {})
    name = _name(content.get("schema", {}))
    if name in schemas:
        shown[name] = schemas[name]
        yield _fields(schemas[name])


def _fields(schema: Schema) -> str:
    required = schema.get("required", ())
    rows = [
        (name, _type(field), _default(name, field, required), field.get("description", ""))
        for name, field in schema.get("properties", {}).items()
    ]
    return table(_HEADS, rows)


def _default(name: str, field: Schema, required: Any) -> str:
    if name in required:
        return "required"
    return "" if field.get("default") is None else str(field["default"])


def _type(field: Schema) -> str:
    """In words: names of schemas, lists, alternatives and bounds."""
    if "$ref" in field:
        return _name(field)
    if "enum" in field or "const" in field:
        return " | ".join(f'"{value}"' for value in field.get("enum", [field.get("const")]))
    for key in ("anyOf", "oneOf", "allOf"):
        if key in field:
            kinds = [_type(kind) for kind in field[key]]
            return " | ".join(kind for kind in dict.fromkeys(kinds) if kind != "null")
    kind = str(field.get("type", "any"))
    if kind == "array":
        return f"list of {_type(field.get('items', {}))}"
    return kind + _bounds(field)


def _bounds(field: Schema) -> str:
    low = field.get("minimum", field.get("exclusiveMinimum"))
    high = field.get("maximum", field.get("exclusiveMaximum"))
    if low is None and high is None:
        return ""
    if high is None:
        return f", from {low:g}"
    return f", up to {high:g}" if low is None else f", {low:g} to {high:g}"


def _nested(shown: Schema, schemas: Schema) -> dict[str, Schema]:
    """The schemas that the bodies are made of, in the order they are named."""
    found: dict[str, Schema] = {}
    waiting = list(shown.values())
    while waiting:
        for name in _names(waiting.pop(0)):
            if name in schemas and name not in found and name not in shown:
                if "properties" in schemas[name]:
                    found[name] = schemas[name]
                waiting.append(schemas[name])
    return found


def _names(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        if "$ref" in node:
            yield _name(node)
        for value in node.values():
            yield from _names(value)
    elif isinstance(node, list):
        for value in node:
            yield from _names(value)


def _name(field: Schema) -> str:
    return str(field.get("$ref", "")).rpartition("/")[2]
