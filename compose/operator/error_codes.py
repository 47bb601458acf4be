"""Every error code of TideBus, read from the code: what `tidebus errors` prints and `docs/error-codes.md` lists.

``python -m compose.operator.error_codes`` prints that page anew, with ``--json`` the same as data, which the console
shows beside an error; a test holds both against the code.
"""

import json
import pkgutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from inspect import cleandoc
from typing import Final

from consumers.control.changefeeds.states import DIED
from consumers.control.core.changefeeds.errors import TABLE_HELD, UPSTREAM_STANDS
from schemas.errors import Action, BusError

PACKAGES = ("schemas", "edges", "producers", "sorters", "consumers", "compose")
WHAT_FOLLOWS = {
    Action.RETRY: "retried",
    Action.STOP_CHANGEFEED: "needs you",
    Action.CRASH: "a bug",
}
_PAGE_HEAD = """# Error codes

Made by `python -m compose.operator.error_codes`, which reads them from the code; a test holds this page against it.
`tidebus errors CODE` says the same on a machine. Every message of TideBus has the form
`[code] what was seen and what is allowed (where)`, in logs, in `tidebus changefeed query` and in the API's answers;
codes are never renamed.

- **retried**: may heal by itself, and is tried again after growing pauses. Look only if it goes on; a changefeed that
  has made no progress for `changefeed-error-stuck-duration` (half an hour) becomes `failed`.
- **needs you**: the same attempt would fail again. A changefeed stops with nothing lost and goes on by
  `tidebus changefeed resume` once the cause is mended; a command ends with exit status 1 or 2.
- **a bug**: of TideBus. It halts before wrong data leaves it; please report it with the log around it.

| code | then | what it says |
|---|---|---|
"""


@dataclass(frozen=True, slots=True, order=True)
class ErrorCode:
    """One code; ``meaning`` is what the class says, without line breaks."""

    code: str
    follows: str
    meaning: str


SAID_OF_OTHERS: Final = (
    ErrorCode(
        DIED,
        WHAT_FOLLOWS[Action.RETRY],
        "The sorter service of a changefeed has ended without saying why: it was killed, also for standing still, had "
        "no memory, or crashed. The message has its last lines, its log has more.",
    ),
    ErrorCode(
        TABLE_HELD,
        WHAT_FOLLOWS[Action.RETRY],
        "A warning: a table of the changefeed is behind the other tables of its upstream, and the changefeed waits for "
        "it. The message says which table, and why.",
    ),
    ErrorCode(
        UPSTREAM_STANDS,
        WHAT_FOLLOWS[Action.RETRY],
        "A warning: the frontier of the changefeed's upstream stands, and the changefeed waits for it. The message "
        "says why.",
    ),
)
"""Codes that no exception has: the owner, or a capture, says them of a changefeed."""


def catalogue() -> list[ErrorCode]:
    """Return all codes in order, after importing every module that could define one."""
    for package in PACKAGES:
        for module in pkgutil.walk_packages(import_module(package).__path__, f"{package}."):
            if not module.name.endswith("__main__"):
                _import(module.name)
    codes = set(SAID_OF_OTHERS)
    for kind in _kinds(BusError):
        if "code" in vars(kind) and kind.__module__.split(".")[0] in PACKAGES:
            codes.add(ErrorCode(kind.code, WHAT_FOLLOWS[kind.action], _meaning(kind)))
    return sorted(codes)


def as_page(codes: list[ErrorCode]) -> str:
    """Return the page."""
    return _PAGE_HEAD + "".join(f"| `{entry.code}` | {entry.follows} | {entry.meaning} |\n" for entry in codes)


def as_data(codes: list[ErrorCode]) -> str:
    """Return the codes as a JSON array of code, what follows and meaning, a line each."""
    lines = (json.dumps([entry.code, entry.follows, entry.meaning], ensure_ascii=False) for entry in codes)
    return "[\n" + ",\n".join(lines) + "\n]\n"


def _import(module: str) -> None:
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in PACKAGES:
            raise
        # It is about a destination whose client is not installed here; no such module defines a code.


def _kinds(kind: type[BusError]) -> Iterator[type[BusError]]:
    yield kind
    for derived in kind.__subclasses__():
        yield from _kinds(derived)


def _meaning(kind: type[BusError]) -> str:
    said = cleandoc(kind.__doc__ or "").split("\n\n")[0].replace("\n", " ").replace("``", "`").replace("|", "\\|")
    return said[:1].upper() + said[1:]


if __name__ == "__main__":
    print((as_data if sys.argv[1:] == ["--json"] else as_page)(catalogue()), end="")
