"""Kinds of values that options take, and what options are added to."""

import re
from collections.abc import Callable, Collection
from typing import TypeVar

import click

from schemas.nodes.changefeed import ID_CHARS_MAX, is_id

Command = TypeVar("Command", bound=Callable[..., object])
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
_PATH_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_HEAP = re.compile(r"([0-9]{1,12})([kmgt])", re.IGNORECASE)
_HEAP_BYTES_MIN = 512 << 20
"""Spark does not start with less than 450 MiB of what the JVM calls its own."""
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class Id(click.ParamType[str]):
    """Of a changefeed, or a namespace: it becomes a part of paths in ZooKeeper and of names of files."""

    name = "id"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return it."""
        if not is_id(str(value)):
            allowed = f"letters and digits in groups joined by single '-', at most {ID_CHARS_MAX} characters"
            self.fail(f"{str(value)[:100]!r} is no id: {allowed}", param, ctx)
        return str(value)


class PathPart(click.ParamType[str]):
    """Of a cluster, an upstream or a sorter service: it becomes a part of paths in ZooKeeper and of names of topics."""

    name = "name"

    def __init__(self, *, chars_max: int = 128, reserved: Collection[str] = ()) -> None:
        """``reserved``: what may not stand before its first dot."""
        self._chars_max, self._reserved = chars_max, reserved

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return it."""
        text = str(value)
        if not _PATH_PART.fullmatch(text) or len(text) > self._chars_max:
            allowed = f"letters, digits, `_`, `-` and `.`, the first a letter or digit, at most {self._chars_max}"
            self.fail(f"{text[:100]!r} is no name: {allowed}", param, ctx)
        if text.partition(".")[0] in self._reserved:
            self.fail(f"{text[:100]!r} is the bus's own: {', '.join(sorted(self._reserved))} are reserved", param, ctx)
        return text


class FeedNameType(click.ParamType[str]):
    """``NAMESPACE/ID`` of a changefeed."""

    name = "changefeed"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return it; empty where nothing is given."""
        text = str(value)
        namespace, _, changefeed_id = text.partition("/")
        if text and not (is_id(namespace) and is_id(changefeed_id)):
            self.fail(f"{text[:100]!r} names no changefeed; write NAMESPACE/ID, such as default/orders", param, ctx)
        return text


class Duration(click.ParamType[float]):
    """Seconds, from ``90s``, ``1.5m``, ``500ms`` or a plain number of seconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds."""
        if isinstance(value, float | int):
            return float(value)
        match = _DURATION.fullmatch(str(value).strip())
        if not match:
            self.fail(f"{value!r} is not a duration such as 90s, 2m or 500ms", param, ctx)
        return float(match[1]) * _SECONDS[match[2] or "s"]


class HeapSize(click.ParamType[str]):
    """Of a JVM that runs Spark: a word of ``-Xmx``, such as ``1500m``. The JVM's own no to another tells little."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return it; empty where nothing is given."""
        text = str(value).strip()
        match = _HEAP.fullmatch(text)
        if text and not (match and int(match[1]) << 10 * (1 + "kmgt".index(match[2].lower())) >= _HEAP_BYTES_MIN):
            self.fail(f"{text[:40]!r} is no heap such as 1500m or 2g; at least 512m is allowed", param, ctx)
        return text
