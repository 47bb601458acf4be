"""References in place of secrets: ``${env:NAME}`` and ``${file:/path}`` in a sink URI or a changefeed's settings.

What is kept and shown is the reference; who connects puts the secret in its place (:mod:`edges.secrets`). Settings are
checked with a stand-in.

A reference stands only where a secret belongs: in user and password of a URI, and in parameters and settings that are
named as secrets are. Those are shown by nobody. Elsewhere, in a topic or a host, whoever may ask the API to look at a
changefeed would be told what the reference stands for.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote, unquote_plus

from schemas.config.parse.origin import Origin, Path
from schemas.errors import ConfigError
from schemas.masking import is_secret_name

Resolve = Callable[[str, str], str]
"""Returns the secret that a kind (``env``, ``file``) and a name stand for."""
STAND_IN: Final = "dGlkZWJ1cy1zdGFuZC1pbi1zZWNyZXQh"
"""Passes where a secret must be base64, or 32 bytes long."""
SECRET_URIS: Final = frozenset({"schema-registry", "claim-check-storage-uri", "storage"})
"""Settings that are URIs with secrets in them."""
_REFERENCE: Final = re.compile(r"\$\{(env|file):([^{}]{1,500})\}")
_MARK: Final = re.compile(r"tidebusreference(\d+)end")
"""Stands for a reference while a URI is taken apart: letters and digits, at which no part of one ends."""
_IN_ESCAPE: Final = re.compile(rf"%[0-9A-Fa-f]?{_MARK.pattern}")
_PLACES: Final = (
    "a reference to a secret may stand in user and password of a URI, and in parameters and settings that are named as "
    "secrets are, such as sasl-password"
)
_NAME_CHARS_MAX: Final = 60


def with_secrets(sink_uri: str, config: Any, resolve: Resolve, origin: Origin | None = None) -> tuple[str, Any]:
    """Return URI and settings with secrets in place of references; in URIs they are escaped.

    Raises:
        ConfigError: a reference stands where no secret belongs; ``fields`` name the setting, or the parameter.
    """
    uri = _uri_with_secrets(sink_uri, resolve, _of_sink_uri)
    return uri, _with_secrets(config, (), resolve, origin or Origin())


def with_stand_ins(sink_uri: str, config: Any, origin: Origin | None = None) -> tuple[str, Any]:
    """Return URI and settings as they can be checked.

    Raises:
        ConfigError: see :func:`with_secrets`.
    """
    return with_secrets(sink_uri, config, lambda kind, name: STAND_IN, origin)


def has_references(value: Any) -> bool:
    """Tell whether a text or a table holds a reference."""
    if isinstance(value, str):
        return _REFERENCE.search(value) is not None
    if isinstance(value, Mapping):
        return any(map(has_references, value.values()))
    return isinstance(value, list | tuple) and any(map(has_references, value))


def _with_secrets(value: Any, path: Path, resolve: Resolve, origin: Origin) -> Any:
    if isinstance(value, Mapping):
        return {key: _with_secrets(inner, (*path, str(key)), resolve, origin) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_with_secrets(inner, (*path, at), resolve, origin) for at, inner in enumerate(value)]
    if not isinstance(value, str) or not has_references(value):
        return value
    name = next((part for part in reversed(path) if isinstance(part, str)), "")
    if is_secret_name(name):
        return _REFERENCE.sub(lambda reference: resolve(reference[1], reference[2]), value)
    if name in SECRET_URIS:
        return _uri_with_secrets(value, resolve, lambda part: origin.error(path, f"{_PLACES}, not in {part}"))
    raise origin.error(path, f"{_PLACES}, not here")


def _uri_with_secrets(uri: str, resolve: Resolve, refusal: Callable[[str], ConfigError]) -> str:
    references = [(reference[1], reference[2]) for reference in _REFERENCE.finditer(uri)]
    if not references:
        return uri
    if _MARK.search(uri):
        raise refusal("a text that holds our own mark")
    numbers = iter(range(len(references)))
    marked = _REFERENCE.sub(lambda _: f"tidebusreference{next(numbers)}end", uri)
    stands_in = "an escape" if _IN_ESCAPE.search(marked) else _misplaced(marked)
    if stands_in is not None:
        raise refusal(stands_in)

    def filled(part: str, times: int) -> str:
        for mark in reversed(list(_MARK.finditer(part))):
            secret = resolve(*references[int(mark[1])])
            for _ in range(times):
                secret = quote(secret, safe="")
            part = part[: mark.start()] + secret + part[mark.end() :]
        return part

    head, question, query = marked.partition("?")
    # What is a URI itself is unescaped twice: as a parameter, and as the URI that it is.
    params = [filled(param, 2 if _name(param) in SECRET_URIS else 1) for param in query.split("&")]
    return filled(head, 1) + question + "&".join(params)


def _misplaced(marked: str) -> str | None:
    """Return in which part of a URI a mark stands where no secret belongs; None: in none."""
    rest, _, fragment = marked.partition("#")
    address, _, query = rest.partition("?")
    scheme, _, behind = address.partition("://")
    authority, _, path = behind.partition("/")
    host = authority.rpartition("@")[2]
    for part, called in ((scheme, "the scheme"), (host, "a host"), (path, "the path"), (fragment, "the fragment")):
        if _MARK.search(part):
            return called
    for param in query.split("&"):
        name, _, value = param.partition("=")
        if _MARK.search(name):
            return "a parameter's name"
        if not _MARK.search(value) or is_secret_name(name):
            continue
        shown = f"the parameter `{_name(param)[:_NAME_CHARS_MAX]}`"
        if _name(param) not in SECRET_URIS:
            return shown
        inner = _misplaced(unquote_plus(value))
        if inner is not None:
            return f"{inner} of {shown}"
    return None


def _name(param: str) -> str:
    return unquote_plus(param.partition("=")[0])


def _of_sink_uri(part: str) -> ConfigError:
    return ConfigError(f"{_PLACES}, not in {part}", key="sink-uri", where="sink URI")
