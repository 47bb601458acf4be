"""Tables as people name them: ``schema.table``, each part in backticks where a dot in it could mean another table."""

import re
from collections.abc import Collection
from typing import Final

_QUOTED: Final = re.compile(r"`((?:[^`]|``)+)`\.`((?:[^`]|``)+)`")


def table_named(names: Collection[tuple[str, str]], text: str, whose: str) -> tuple[str, str]:
    """Return which of some tables, schema and name each, a text names.

    Raises:
        ValueError: none of them, or several; its text is a reason for people. ``whose`` they are.

    >>> table_named([("a.b", "c"), ("a", "b.c")], "`a`.`b.c`", "the changefeed")
    ('a', 'b.c')
    """
    match = _QUOTED.fullmatch(text)
    quoted = match and tuple(part.replace("``", "`") for part in match.groups())
    meant = [name for name in names if name == quoted or ".".join(name) == text]
    if not meant:
        raise ValueError(f"{whose} has no such table: {text[:200]}; write schema.table")
    if len(meant) > 1:
        known = ", ".join(".".join(f"`{part.replace('`', '``')}`" for part in name) for name in meant)
        raise ValueError(f"{whose} has several tables called {text[:200]}; write which: {known}")
    return meant[0]
