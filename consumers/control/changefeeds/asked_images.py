"""What users want of a changefeed's table images: its node ``images``, JSON.

    {"backfill": [112, 115], "resync": [], "paused": [112], "is_paused": false}          physical table ids

The API adds tables to ``backfill`` and ``resync``, the owner takes them out once a frontier record has them. ``paused``
is the API's alone: no more chunks of these tables are begun, with ``is_paused`` of none at all. An owner of an older
version passes over it, and drops it where it takes out a table.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from schemas.errors import CorruptDataError
from schemas.ids import TableId
from schemas.json_text import read_int, read_json
from schemas.rawlog.images import ImageMode

TABLES_MAX: Final = 20_000
"""Asked for and not begun yet, of one changefeed, and as many paused: the node stays small. Partitions are tables of
their own."""
BY_HAND: Final = (ImageMode.BACKFILL, ImageMode.RESYNC)

Requested = Mapping[ImageMode, frozenset[TableId]]
"""Tables by mode; those of ``BY_HAND``."""
AskedTable = tuple[ImageMode, TableId]
_NO_REQUESTS: Final[Requested] = MappingProxyType(dict.fromkeys(BY_HAND, frozenset()))


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedImages:
    """Of one changefeed."""

    requested: Requested = field(default_factory=lambda: _NO_REQUESTS)
    paused: frozenset[TableId] = frozenset()
    """Of these no chunk is begun, until somebody resumes them or asks for their image anew."""
    is_paused: bool = False
    """Of no table is a chunk begun."""


NOTHING_ASKED: Final = AskedImages()


def encode_asked(asked: AskedImages) -> bytes:
    """Return the node's bytes."""
    node: dict[str, Any] = {mode.value: sorted(asked.requested.get(mode, ())) for mode in BY_HAND}
    return json.dumps(node | {"paused": sorted(asked.paused), "is_paused": asked.is_paused}).encode()


def decode_asked(node: bytes) -> AskedImages:
    """Read a changefeed's ``images`` node; one of an older version pauses nothing.

    Raises:
        CorruptDataError: it is no such node.
    """
    try:
        raw = read_json(node)
        requested = {mode: _tables(raw[mode.value]) for mode in BY_HAND}
        paused, is_paused = _tables(raw.get("paused", [])), raw.get("is_paused", False)
        if not isinstance(is_paused, bool):
            raise TypeError(f"is_paused {is_paused!r}")
        if max(sum(map(len, requested.values())), len(paused)) > TABLES_MAX:
            raise ValueError(f"more than {TABLES_MAX} tables")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptDataError("node of images does not decode", node=node[:200], reason=repr(error)) from error
    return AskedImages(requested=requested, paused=paused, is_paused=is_paused)


def _tables(raw: Any) -> frozenset[TableId]:
    return frozenset(TableId(read_int(table, bits=63)) for table in raw)
