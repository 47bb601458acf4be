"""Tables of every kind of key, and what SQL shows of a row of them, said without any decoder of rows.

A row is a function of its number, a sequence number that changes with every write, and a pool of text
(:mod:`producers.region_server.core.store.row_shapes`). Its texts are made here from the same three, so that the source
of a comparison hangs on nothing that is compared.
"""

import copy
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import md5
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

from producers.region_server.core.store.row_shapes import SHAPES, int_value
from schemas.ids import TableId
from schemas.tidb.codec import encode_bytes
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import decode_row_v2, encode_row_v2

Texts = tuple[bytes | None, ...]
Numbers = npt.NDArray[np.int64]
SPREAD = 2_654_435_761
ROW_ID_ABOVE = 10_000_000
"""Of a table whose rows stand under a hidden id: how far that is from the key that users see."""
RANGE_ENDS = ("2000", "9000", "MAXVALUE")
EXTRA, EXTRA_DEFAULT = "extra", 7
"""A column that a DDL adds."""
_BINARY, _UNIQUE = 128, 4
_SBTEST = (("id", "int(11)"), ("k", "int(11)"), ("c", "char(120)"), ("pad", "char(60)"))
_ORDER_LINE = (
    *(("ol_o_id", "int(11)"), ("ol_d_id", "int(11)"), ("ol_w_id", "int(11)"), ("ol_number", "int(11)")),
    *(("ol_i_id", "int(11)"), ("ol_supply_w_id", "int(11)"), ("ol_delivery_d", "datetime"), ("ol_quantity", "int(11)")),
    *(("ol_amount", "decimal(6,2)"), ("ol_dist_info", "char(24)")),
)
_WIDE = (
    *(("id", "bigint(20)"), ("a", "bigint(20) unsigned"), ("b", "int(11)"), ("d", "decimal(20,4)"), ("f", "double")),
    *(("s", "varchar(64)"), ("t", "timestamp(6)"), ("dt", "datetime"), ("j", "json"), ("bl", "varbinary(64)")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableKind:
    """One kind of table."""

    name: str
    shape: str
    """Of its rows and its template."""
    columns: tuple[tuple[str, str], ...]
    """Name and type as ``information_schema`` shows them."""
    key_columns: tuple[str, ...]
    texts: Callable[[int, int, bytes], Texts]
    """Takes number, sequence and pool."""
    first_key: Callable[[Numbers], Numbers] = lambda numbers: numbers
    """Returns the first column of the keys, where it is an integer."""
    partitions: int = 0

    def info(self, name: str, ids: Sequence[int]) -> dict[str, Any]:
        """Return the TableInfo of a new table; ``ids`` are its own and its partitions'."""
        info: dict[str, Any] = copy.deepcopy(_template(self.shape)["table_info"])
        info |= {"id": ids[0], "name": {"O": name, "L": name.lower()}}
        if self.name in {"row_id", "binary"}:
            info |= {"pk_is_handle": False, "is_common_handle": self.name == "binary", "index_info": [_primary()]}
            info["common_handle_version"] = int(self.name == "binary")
        if self.name == "binary":
            kind = info["cols"][0]["type"]
            kind |= {"Tp": 15, "Flen": 16, "Flag": kind["Flag"] | _BINARY, "Charset": "binary", "Collate": "binary"}
        if self.partitions:
            ranged = self.name == "range"
            info["partition"] = {
                "type": 1 if ranged else 2,
                "expr": "`id`",
                "columns": [],
                "enable": True,
                "num": self.partitions,
                "definitions": [
                    {
                        "id": number,
                        "name": {"O": f"p{at}", "L": f"p{at}"},
                        "less_than": [RANGE_ENDS[at]] if ranged else None,
                    }
                    for at, number in enumerate(ids[1:])
                ],
            }
        return info

    def create(self, name: str) -> str:
        """Return the statement that made the table."""
        text = str(_template(self.shape)["create"]).format(name=name)
        if self.name == "row_id":
            text = text.replace("id INT NOT NULL PRIMARY KEY", "id INT NOT NULL").removesuffix(")")
            text += ", PRIMARY KEY (id) /*T![clustered_index] NONCLUSTERED */)"
        elif self.name == "binary":
            text = text.replace("id INT NOT NULL PRIMARY KEY", "id VARBINARY(16) NOT NULL PRIMARY KEY")
        elif self.name == "hash":
            text += f" PARTITION BY HASH (id) PARTITIONS {self.partitions}"
        elif self.name == "range":
            ends = [f"PARTITION p{at} VALUES LESS THAN ({end})" for at, end in enumerate(RANGE_ENDS)]
            text += f" PARTITION BY RANGE (id) ({', '.join(ends)})".replace("(MAXVALUE)", "MAXVALUE")
        return text

    def physical(self, number: int) -> int:
        """Return at which of the table's ids a row stands."""
        if self.name == "hash":
            return 1 + number % self.partitions
        if self.name == "range":
            return 1 + sum(number >= int(end) for end in RANGE_ENDS[:-1])
        return 0

    def key(self, table_id: TableId, number: int) -> bytes:
        """Return a row's key in TiKV."""
        if self.name == "row_id":
            return row_key(table_id, ROW_ID_ABOVE + number)
        if self.name == "binary":
            return row_key(table_id, b"\x01" + encode_bytes(binary_id(number)))
        return SHAPES[self.shape].key(table_id, number)

    def value(self, number: int, sequence: int, pool: bytes, extra_id: int | None) -> bytes:
        """Return a row's bytes; ``extra_id`` is that of the column that a DDL has added."""
        value = SHAPES[self.shape].value(number, sequence, pool)
        more: dict[int, bytes | None] = {}
        if self.name == "row_id":
            more[1] = int_value(number)
        if extra_id is not None:
            more[extra_id] = int_value(extra_of(sequence))
        return encode_row_v2({**decode_row_v2(value), **more}) if more else value


def extra_of(sequence: int) -> int:
    """Return what a row holds in the column that was added."""
    return sequence % 1_000


def binary_id(number: int) -> bytes:
    """Return the key of a row whose key is bytes, some of which are no UTF-8."""
    return b"k\xff%08d" % number


def hashed(texts: Texts) -> int:
    """Return a row's hash as docs/formats/state-proofs.md has it."""
    joined = b",".join([b"~" if text is None else text.hex().upper().encode() for text in texts])
    return int.from_bytes(md5(joined, usedforsecurity=False).digest()[:8], "big")


def add_extra(info: dict[str, Any]) -> dict[str, Any]:
    """Return a TableInfo with ``extra INT NOT NULL DEFAULT 7`` behind its columns."""
    after = copy.deepcopy(info)
    column = copy.deepcopy(_template("sbtest1")["table_info"]["cols"][1])
    after["max_col_id"] += 1
    default = str(EXTRA_DEFAULT)
    column |= {
        "id": after["max_col_id"],
        "offset": len(after["cols"]),
        "name": {"O": EXTRA, "L": EXTRA},
        "origin_default": default,
        "default": default,
    }
    column["type"]["Flag"] = 1
    after["cols"].append(column)
    return after


def _at(number: int, sequence: int, pool: bytes, length: int) -> int:
    return (number * SPREAD + sequence * 7919) % (len(pool) - length)


def _sbtest_texts(number: int, sequence: int, pool: bytes) -> Texts:
    at = _at(number, sequence, pool, 180)
    return b"%d" % number, b"%d" % (at * 31 + sequence), pool[at : at + 119], pool[at + 120 : at + 179]


def _binary_texts(number: int, sequence: int, pool: bytes) -> Texts:
    return binary_id(number), *_sbtest_texts(number, sequence, pool)[1:]


def _order_line_texts(number: int, sequence: int, pool: bytes) -> Texts:
    at = _at(number, sequence, pool, 24)
    order, line = divmod(number, 10)
    district, order = divmod(order, 3_000)
    warehouse, district = divmod(district, 10)
    when = b"2026-%02d-%02d %02d:%02d:00" % (1 + at % 12, 1 + at % 28, at % 24, at % 60)
    return (
        *(b"%d" % (part + 1) for part in (order, district, warehouse, line)),
        b"%d" % (1 + at % 100_000),
        b"%d" % (1 + number % 10),
        None if sequence % 3 else when,
        b"5",
        b"%d.%02d" % (at % 9_999, sequence % 100),
        pool[at : at + 24],
    )


def _wide_texts(number: int, sequence: int, pool: bytes) -> Texts:
    at = _at(number, sequence, pool, 64)
    micro = (number * 1009 + sequence) % 1_000_000
    day = b"2026-%02d-%02d %02d:%02d:%02d" % (1 + at % 12, 1 + at % 28, at % 24, at % 60, sequence % 60)
    document = f'{{"i": {number}, "name": "n{sequence}", "sequence": {sequence}}}'.encode()
    return (
        b"%d" % number,
        b"%d" % (number * SPREAD % (1 << 64)),
        b"%d" % (sequence % 4_000_000 - 2_000_000),
        b"%s%d.%04d" % (b"-" if at % 2 else b"", number, sequence % 10_000),
        repr(at / 7).removesuffix(".0").encode(),
        b"name-%d-" % sequence + pool[at : at + 24],
        day + b".%06d" % micro,
        day,
        None if at % 10 == 0 else document,
        struct.pack("<qq", number, sequence),
    )


KINDS = {
    kind.name: kind
    for kind in (
        TableKind(name="int", shape="sbtest1", columns=_SBTEST, key_columns=("id",), texts=_sbtest_texts),
        TableKind(name="row_id", shape="sbtest1", columns=_SBTEST, key_columns=("id",), texts=_sbtest_texts),
        TableKind(
            name="binary",
            shape="sbtest1",
            columns=(("id", "varbinary(16)"), *_SBTEST[1:]),
            key_columns=("id",),
            texts=_binary_texts,
        ),
        TableKind(
            name="common",
            shape="order_line",
            columns=_ORDER_LINE,
            key_columns=("ol_w_id", "ol_d_id", "ol_o_id", "ol_number"),
            texts=_order_line_texts,
            first_key=lambda numbers: numbers // 300_000 + 1,
        ),
        TableKind(name="wide", shape="wide10", columns=_WIDE, key_columns=("id",), texts=_wide_texts),
        TableKind(
            name="hash", shape="sbtest1", columns=_SBTEST, key_columns=("id",), texts=_sbtest_texts, partitions=4
        ),
        TableKind(
            name="range", shape="sbtest1", columns=_SBTEST, key_columns=("id",), texts=_sbtest_texts, partitions=3
        ),
    )
}


def _primary() -> dict[str, Any]:
    return {
        "id": 1,
        "idx_name": {"O": "PRIMARY", "L": "primary"},
        "tbl_name": {"O": "", "L": ""},
        "idx_cols": [{"name": {"O": "id", "L": "id"}, "offset": 0, "length": -1}],
        "state": 5,
        "comment": "",
        "index_type": 1,
        "is_unique": True,
        "is_primary": True,
        "is_invisible": False,
    }


@cache
def _template(name: str) -> dict[str, Any]:
    text = (files("producers.region_server") / "templates" / f"{name}.json").read_text(encoding="utf-8")
    template: dict[str, Any] = json.loads(text)
    return template
