"""References in place of secrets: ``${env:NAME}`` and ``${file:/path}`` in a sink URI or a changefeed's settings.

What is kept and shown is the reference; who connects puts the secret in its place (:mod:`edges.secrets`). Settings are
checked with a stand-in.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

Resolve = Callable[[str, str], str]
"""Returns the secret that a kind (``env``, ``file``) and a name stand for."""
STAND_IN: Final = "tidebus-secret"
_REFERENCE: Final = re.compile(r"\$\{(env|file):([^{}]{1,500})\}")


def with_secrets(sink_uri: str, config: Any, resolve: Resolve) -> tuple[str, Any]:
    """Return URI and settings with secrets in place of references; in the URI they are escaped."""
    return _REFERENCE.sub(lambda reference: quote(resolve(reference[1], reference[2]), safe=""), sink_uri), _replaced(
        config, resolve
    )


def with_stand_ins(sink_uri: str, config: Any) -> tuple[str, Any]:
    """Return URI and settings as they can be checked."""
    return with_secrets(sink_uri, config, lambda kind, name: STAND_IN)


def _replaced(value: Any, resolve: Resolve) -> Any:
    if isinstance(value, str):
        return _REFERENCE.sub(lambda reference: resolve(reference[1], reference[2]), value)
    if isinstance(value, Mapping):
        return {key: _replaced(inner, resolve) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(inner, resolve) for inner in value]
    return value
