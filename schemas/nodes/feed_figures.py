"""What is counted of running changefeeds and nobody needs within a second, as ZooKeeper keeps it beside ``progress``.

    figures/{service}/{number}   by the service: the figures of the changefeeds in ``progress/{service}/{number}``

An entry of ``progress`` is written several times a second, its figures each few seconds, for they are as large as all
else of it. They are of one run: those that a former holder has left say nothing of the one that came after it.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from schemas.errors import CorruptDataError
from schemas.json_text import read_int, read_json, read_text
from schemas.sink_figures import NO_FIGURES, SinkFigures, figures_json, read_figures

FIGURES_BYTES_MAX: Final = 512 * 1024
"""What a reader takes; ZooKeeper itself takes 1 MiB."""


class RunKey(NamedTuple):
    """Which run of a changefeed figures are of."""

    namespace: str
    changefeed_id: str
    created_zxid: int
    epoch: int
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedFigures:
    """Counted since the changefeed began to run where it runs."""

    reason: str = ""
    """Why its last cut ran where it ran (:mod:`sorters.core.cut`)."""
    damaged_records_total: int = 0
    states_proven: int = 0
    """Physical tables whose state proof is carried."""
    states_unproven: int = 0
    windows_proven: int = 0
    """Cuts whose flow proof came out even."""
    sent: SinkFigures = NO_FIGURES
    """How messages went to Kafka."""


NOTHING_COUNTED: Final = FeedFigures()
_NUMBERS: Final = ("damaged_records_total", "states_proven", "states_unproven", "windows_proven")
_OTHERS: Final = {*_NUMBERS, "sent"}


def encode_figures(figures: Iterable[tuple[RunKey, FeedFigures]]) -> bytes:
    """Return a ``figures/…`` node."""
    rows = [[*run, _shown(counted)] for run, counted in figures if counted != NOTHING_COUNTED]
    return json.dumps(rows, separators=(",", ":")).encode()


def decode_figures(node: bytes) -> dict[RunKey, FeedFigures]:
    """Read a ``figures/…`` node.

    Raises:
        CorruptDataError: it is no such node.
    """
    if len(node) > FIGURES_BYTES_MAX:
        raise CorruptDataError(
            "figures of a sorter service are too large", bytes=len(node), bytes_max=FIGURES_BYTES_MAX
        )
    try:
        rows = read_json(node)
        if not isinstance(rows, list):
            raise TypeError("figures are no list")
        return dict(map(_row, rows))
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptDataError(
            "figures of a sorter service do not decode", bytes=len(node), reason=repr(error)
        ) from error


def read_feed_figures(raw: dict[str, Any]) -> FeedFigures:
    """Read the figures of one changefeed, of which each may be absent; a version before kept them in its entry.

    Raises:
        ValueError, TypeError: they are none.
    """
    if not raw.get("reason") and _OTHERS.isdisjoint(raw):
        return NOTHING_COUNTED
    return FeedFigures(
        reason=read_text(raw.get("reason", "")),
        sent=read_figures(raw.get("sent", {})),
        **{name: read_int(raw.get(name, 0)) for name in _NUMBERS},
    )


def _shown(figures: FeedFigures) -> dict[str, object]:
    shown: dict[str, object] = {"reason": figures.reason} if figures.reason else {}
    shown |= {name: number for name in _NUMBERS if (number := getattr(figures, name))}
    return shown | ({"sent": figures_json(figures.sent)} if figures.sent != NO_FIGURES else {})


def _row(raw: Any) -> tuple[RunKey, FeedFigures]:
    namespace, changefeed_id, created_zxid, epoch, revision, figures = raw
    run = RunKey(
        read_text(namespace), read_text(changefeed_id), read_int(created_zxid), read_int(epoch), read_int(revision)
    )
    if not isinstance(figures, dict):
        raise TypeError("figures of a changefeed are no object")
    return run, read_feed_figures(figures)
