"""What users want of a changefeed's table images: its node ``images``, JSON.

    {"backfill": [112, 115], "resync": [], "ranged": [{"mode": "backfill", "table_id": 117, "keys": [["74…", "74…"]]}],
     "paused": [112], "is_paused": false}

Tables are physical ids. The API adds them to ``backfill`` and ``resync``, or with some ranges of their raw keys to
``ranged``, and the owner takes them out once a frontier record has them. ``paused`` is the API's alone: no more chunks
of these tables are begun, with ``is_paused`` of none at all. An owner of an older version passes over ``ranged`` and
``paused``, and drops them where it takes out a table.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from schemas.errors import CorruptDataError
from schemas.ids import TableId
from schemas.json_text import read_bool, read_int, read_json, read_text
from schemas.rawlog.images import ImageMode, KeyRange, merge_keys

TABLES_MAX: Final = 20_000
"""Asked for and not begun yet, of one changefeed, and as many paused: the node stays small. Partitions are tables of
their own."""
BY_HAND: Final = (ImageMode.BACKFILL, ImageMode.RESYNC)

Requested = Mapping[ImageMode, frozenset[TableId]]
"""Tables by mode; those of ``BY_HAND``."""
Ranged = Mapping[tuple[ImageMode, TableId], tuple[KeyRange, ...]]
"""Raw keys of which an image is wanted, within the table's records, and short of their end; ascending, never none."""
_MENDS: Final = (
    "`tidebus table resume` of the changefeed without --table makes it anew, with nothing asked for and nothing "
    "paused: ask again for images that had not begun"
)
_NO_RANGES: Final[Ranged] = MappingProxyType({})
_NO_REQUESTS: Final[Requested] = MappingProxyType(dict.fromkeys(BY_HAND, frozenset()))


class AskedTable(NamedTuple):
    """One thing that is asked for."""

    mode: ImageMode
    table_id: TableId
    keys: tuple[KeyRange, ...] = ()
    """None: all of the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedImages:
    """Of one changefeed."""

    requested: Requested = field(default_factory=lambda: _NO_REQUESTS)
    """Of whole tables."""
    ranged: Ranged = field(default_factory=lambda: _NO_RANGES)
    """Of parts of tables; a table is not both here and in ``requested``."""
    paused: frozenset[TableId] = frozenset()
    """Of these no chunk is begun, until somebody resumes them or asks for their image anew."""
    is_paused: bool = False
    """Of no table is a chunk begun."""

    @property
    def tables(self) -> frozenset[AskedTable]:
        """All that is asked for, one by one."""
        whole = (AskedTable(mode, table) for mode, tables in self.requested.items() for table in tables)
        return frozenset(whole).union(AskedTable(*asked, keys) for asked, keys in self.ranged.items())


NOTHING_ASKED: Final = AskedImages()


def encode_asked(asked: AskedImages) -> bytes:
    """Return the node's bytes."""
    node: dict[str, object] = {mode.value: sorted(asked.requested.get(mode, ())) for mode in BY_HAND}
    node["ranged"] = [
        {"mode": mode.value, "table_id": table, "keys": [[item.start.hex(), item.end.hex()] for item in keys]}
        for (mode, table), keys in sorted(asked.ranged.items())
    ]
    return json.dumps(node | {"paused": sorted(asked.paused), "is_paused": asked.is_paused}).encode()


def decode_asked(node: bytes) -> AskedImages:
    """Read a changefeed's ``images`` node; one of an older version pauses nothing.

    Raises:
        CorruptDataError: it is no such node.
    """
    try:
        raw = read_json(node)
        requested = {mode: _tables(raw[mode.value]) for mode in BY_HAND}
        ranged = dict(_ranged(item) for item in raw.get("ranged", []))
        paused, is_paused = _tables(raw.get("paused", [])), read_bool(raw.get("is_paused", False))
        if max(sum(map(len, requested.values())) + len(ranged), len(paused)) > TABLES_MAX:
            raise ValueError(f"more than {TABLES_MAX} tables")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        text = f"node of images does not decode; {_MENDS}"
        raise CorruptDataError(text, node=node[:200], reason=repr(error)) from error
    return AskedImages(requested=requested, ranged=ranged, paused=paused, is_paused=is_paused)


def _ranged(raw: Any) -> tuple[tuple[ImageMode, TableId], tuple[KeyRange, ...]]:
    mode, table = ImageMode(read_text(raw["mode"], 40)), TableId(read_int(raw["table_id"], bits=63))
    keys = tuple(KeyRange(*(bytes.fromhex(read_text(bound)) for bound in item)) for item in raw["keys"])
    whole = KeyRange.of_table(table)
    if mode not in BY_HAND or not keys or merge_keys(keys) != keys:
        raise ValueError(f"ranges of table {table}")
    if keys[0].start < whole.start or keys[-1].end >= whole.end:
        raise ValueError(f"keys that are not of table {table}")
    return (mode, table), keys


def _tables(raw: Iterable[object]) -> frozenset[TableId]:
    return frozenset(TableId(read_int(table, bits=63)) for table in raw)
