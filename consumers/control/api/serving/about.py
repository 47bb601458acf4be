"""The page ``/docs``: what the API can, made of its own description.

FastAPI's pages load scripts from a server of somebody else's, which then run beside the console with the login of who
looks; this one has no script, and needs no other server.
"""

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any, Final

_STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem; color-scheme: light dark }
code { font-family: ui-monospace, monospace; overflow-wrap: anywhere }
summary { cursor: pointer; padding: .25rem 0 }
details { border-bottom: 1px solid #8886 }
dl { margin: 0 0 1rem 1rem }
"""
_DIGEST: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
ABOUT_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_DIGEST}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def about_page(document: Mapping[str, Any]) -> str:
    """Return the page of an OpenAPI document: routes by subject, each with its parameters and the keys of its body."""
    title, info = escape(document["info"]["title"]), document["info"]
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}: API</title>',
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>',
        f"<h1>{title}: API</h1><p>{escape(info.get('description', ''))} Version {escape(info['version'])}.",
        'For programs it is <a href="/openapi.json">/openapi.json</a>; the <a href="/console">console</a> uses it.',
    ]
    subjects: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            subjects.setdefault((route.get("tags") or ["other"])[0], []).append(_route(method, path, route, document))
    for subject, routes in subjects.items():
        parts += [f"<h2>{escape(subject)}</h2>", *routes]
    return "\n".join(parts)


def _route(method: str, path: str, route: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    shown = f"<code>{escape(method.upper())} {escape(path)}</code> – {escape(route.get('summary', ''))}"
    given = [*_parameters(route.get("parameters", ())), *_body(route.get("requestBody"), document)]
    listed = f"<dl>{''.join(given)}</dl>" if given else ""
    return f"<details><summary>{shown}</summary><p>{escape(route.get('description', ''))}</p>{listed}</details>"


def _parameters(parameters: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for parameter in parameters:
        yield _item(f"{parameter['name']} ({parameter['in']})", parameter["schema"], parameter.get("description", ""))


def _body(body: Mapping[str, Any] | None, document: Mapping[str, Any]) -> Iterator[str]:
    schema = (body or {}).get("content", {}).get("application/json", {}).get("schema", {})
    for choice in schema.get("anyOf", [schema]):
        form = document["components"]["schemas"].get(choice.get("$ref", "").rpartition("/")[2], {})
        for name, key in form.get("properties", {}).items():
            yield _item(f"{name} (body)", key, key.get("description", ""))


def _item(name: str, schema: Mapping[str, Any], description: str) -> str:
    kinds = [choice.get("type", "") for choice in schema.get("anyOf", [schema])]
    kind = " or ".join(filter(None, kinds))
    return f"<dt><code>{escape(name)}</code> {escape(kind)}</dt><dd>{escape(description)}</dd>"
