"""Kinds of values that options take, and what options are added to."""

import re
from collections.abc import Callable
from typing import TypeVar

import click

from schemas.nodes.changefeed import ID_CHARS_MAX, is_id

Command = TypeVar("Command", bound=Callable[..., object])
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
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
