"""Random tables and rows in TiDB's encoding, of every column type: input for tests that compare two decoders.

Written from the format's description with ``struct``; only key datums and the v2 frame come from the product's codec,
which has tests of its own.
"""

import random
import struct
from typing import Any

from schemas.ids import Ts
from schemas.tidb.codec import encode_bytes, encode_float, encode_int, encode_uint
from schemas.tidb.keys import row_key
from schemas.tidb.mysql_decimal import encode_decimal
from schemas.tidb.mysql_types import MysqlType
from schemas.tidb.packed_time import pack_time
from schemas.tidb.row_v2 import encode_row_v2
from schemas.tidb.table import HandleKind, TableVersion
from schemas.tidb.table_info import table_version
from tests.support.recorded.recording import CommittedChange

TABLE_ID = 77
NOT_NULL, PRIMARY, UNSIGNED = 1, 2, 32
INTEGERS = {
    MysqlType.TINYINT: 8,
    MysqlType.SMALLINT: 16,
    MysqlType.MEDIUMINT: 24,
    MysqlType.INT: 32,
    MysqlType.BIGINT: 64,
}
STRINGS = (
    MysqlType.VARCHAR,
    MysqlType.STRING,
    MysqlType.VAR_STRING,
    MysqlType.TINYBLOB,
    MysqlType.BLOB,
    MysqlType.MEDIUMBLOB,
    MysqlType.LONGBLOB,
)
TIMES = (MysqlType.DATE, MysqlType.DATETIME, MysqlType.TIMESTAMP, MysqlType.TIME)
OTHERS = (
    MysqlType.FLOAT,
    MysqlType.DOUBLE,
    MysqlType.YEAR,
    MysqlType.BIT,
    MysqlType.VECTOR,
    MysqlType.JSON,
    MysqlType.DECIMAL,
    MysqlType.ENUM,
    MysqlType.SET,
)
ALL_TYPES = (*INTEGERS, *STRINGS, *TIMES, *OTHERS)
KEY_TYPES = (MysqlType.INT, MysqlType.BIGINT, MysqlType.VARCHAR, MysqlType.DECIMAL, MysqlType.DATETIME, MysqlType.TIME)
TEXTS = (
    "",
    "a",
    "plain text of some length",
    'q"uo\\te',
    "<&>",
    "tab\tnl\n\x01\x1f\x7f",
    "ünï",
    "\u2028\u2029\ufffd",
    "\U0001f389",
)
ELEMS = ["x", "y,z", "日本"]


def random_table(rng: random.Random) -> TableVersion:
    """Return a table with up to eight columns behind a random kind of key."""
    kind = rng.choice(["int", "common", "row_id"])
    columns = [_column(rng, 1, MysqlType.BIGINT if kind == "int" else rng.choice(KEY_TYPES), key=kind != "row_id")]
    if kind == "common":
        columns.append(_column(rng, 2, rng.choice(KEY_TYPES), key=True))
    keys = len(columns) if kind == "common" else 0
    next_id = len(columns) + 1
    for _ in range(rng.randint(0, 7)):
        columns.append(_column(rng, next_id, rng.choice(ALL_TYPES), key=False))
        next_id += rng.choice([1, 1, 1, 5, 300])
    for offset, column in enumerate(columns):
        column["offset"] = offset
    index = {
        "id": 1, "idx_name": {"O": "PRIMARY", "L": "primary"}, "state": 5, "is_unique": True, "is_primary": True,
        "idx_cols": [{"name": columns[n]["name"], "offset": n, "length": -1} for n in range(keys)],
    }  # fmt: skip
    info = {
        "id": TABLE_ID, "name": {"O": "t", "L": "t"}, "state": 5,
        "cols": columns, "index_info": [index] if keys else [],
        "pk_is_handle": kind == "int", "is_common_handle": kind == "common", "update_timestamp": 5,
    }  # fmt: skip
    return table_version(info, schema_id=1, schema="s", version=Ts(1))


def _column(rng: random.Random, column_id: int, tp: MysqlType, *, key: bool) -> dict[str, Any]:
    flag = (NOT_NULL | PRIMARY if key else rng.choice([0, 0, NOT_NULL])) | rng.choice([0, UNSIGNED])
    binary = tp not in STRINGS or rng.random() < 0.4
    precision = rng.choice([(10, 2), (18, 0), (4, 4), (30, 10), (65, 30)])
    flen, decimal = precision if tp is MysqlType.DECIMAL else (rng.choice([-1, 10]), rng.choice([0, 3, 6]))
    if tp in {MysqlType.FLOAT, MysqlType.DOUBLE}:
        decimal = -1
    default = rng.choice([None, "1"]) if tp in INTEGERS and not key else None
    return {
        "id": column_id, "name": {"O": f"c<{column_id}", "L": f"c<{column_id}"}, "state": 5,
        "origin_default": default, "default": default,
        "type": {
            "Tp": int(tp), "Flag": flag, "Flen": flen, "Decimal": decimal,
            "Charset": "binary" if binary else "utf8mb4",
            "Collate": "binary" if binary else rng.choice(["utf8mb4_bin", "utf8mb4_general_ci"]),
            "Elems": ELEMS if tp in {MysqlType.ENUM, MysqlType.SET} else None,
        },
    }  # fmt: skip


def random_change(rng: random.Random, table: TableVersion, number: int, *, damage: bool) -> CommittedChange:
    """Return an insert, update or delete of a random row; ``damage``: some rows have a broken byte or end."""
    key = _key(rng, table)
    value, old = _row(rng, table), _row(rng, table)
    if damage and rng.random() < 0.2:
        value, old = _damaged(rng, value), rng.choice([old, _damaged(rng, old)])
    op = rng.choice(["insert", "update", "delete"])
    return CommittedChange(
        commit_ts=1000 + number,
        start_ts=900 + number,
        key=key,
        op="delete" if op == "delete" else "put",
        value=b"" if op == "delete" else value,
        old_value=b"" if op == "insert" else old,
        txn_source=0,
    )


def _damaged(rng: random.Random, row: bytes) -> bytes:
    if rng.random() < 0.4:
        return row[: rng.randrange(len(row))] or b"\x80"
    at = rng.randrange(len(row))
    return row[:at] + bytes((rng.randrange(256),)) + row[at + 1 :]


def _key(rng: random.Random, table: TableVersion) -> bytes:
    if table.handle_kind is not HandleKind.COMMON:
        return row_key(table.table_id, rng.choice([0, 1, -1, 2**63 - 1, rng.randrange(1 << 40)]))
    handle = b""
    for offset in table.key_columns:
        column = table.columns[offset]
        match column.tp:
            case MysqlType.VARCHAR:
                handle += b"\x01" + encode_bytes(_key_string(rng, binary=column.binary))
            case MysqlType.DECIMAL:
                handle += b"\x06" + _decimal(rng, column.flen, column.decimal)
            case MysqlType.DATETIME:
                handle += b"\x04" + encode_uint(_packed(rng))
            case MysqlType.TIME:
                handle += b"\x07" + encode_int(_nanoseconds(rng))
            case _ if column.unsigned:
                handle += b"\x04" + encode_uint(rng.choice([0, 1, 2**32 - 1]))
            case _:
                handle += b"\x03" + encode_int(rng.choice([0, 1, -1, 2**31 - 1]))
    return row_key(table.table_id, handle.ljust(9, b"\0"))


def _row(rng: random.Random, table: TableVersion) -> bytes:
    """Encode a row: columns may be missing or NULL, and unknown ones may be there."""
    sparse = rng.random() < 0.5
    columns: dict[int, bytes | None] = {}
    for column in table.columns:
        if column.in_key or (table.pk_is_handle and column.offset == 0):
            if rng.random() < 0.9:
                continue
        elif sparse and rng.random() < 0.2:
            continue
        null = column.nullable and rng.random() < 0.2
        columns[column.id] = None if null else random_value(rng, column)
    if rng.random() < 0.1:
        columns[250] = b"\x01"
    return encode_row_v2(columns)


def random_value(rng: random.Random, column: Any) -> bytes:
    """Encode a value of a column as it stands in a v2 row."""
    tp = column.tp
    if tp in INTEGERS:
        bits = INTEGERS[tp]
        if column.unsigned:
            return _compact(
                rng.choice([0, 1, 255, 1 << bits - 1, (1 << bits) - 1, rng.randrange(1 << bits)]), signed=False
            )
        edge = 1 << bits - 1
        return _compact(rng.choice([0, 1, -1, 127, -129, edge - 1, -edge, rng.randrange(-edge, edge)]), signed=True)
    if tp in STRINGS:
        return _string(rng, binary=column.binary)
    match tp:
        case MysqlType.DATE | MysqlType.DATETIME | MysqlType.TIMESTAMP:
            return _compact(_packed(rng, stamp=tp is MysqlType.TIMESTAMP), signed=False)
        case MysqlType.TIME:
            return _compact(_nanoseconds(rng), signed=True)
        case MysqlType.FLOAT | MysqlType.DOUBLE:
            numbers = [
                0.0,
                -0.0,
                1.0,
                -1.5,
                1e21,
                1.5e-10,
                3.4e38,
                1e300,
                0.1,
                float("inf"),
                float("nan"),
                rng.gauss(0, 1e6),
            ]
            return encode_float(rng.choice(numbers))
        case MysqlType.YEAR:
            return _compact(rng.choice([0, 1901, 2155]), signed=True)
        case MysqlType.BIT:
            return _compact(rng.choice([0, 1, 255, 256, 2**64 - 1]), signed=False)
        case MysqlType.ENUM:
            return _compact(rng.choice([1, 2, 3]), signed=False)
        case MysqlType.SET:
            return _compact(rng.randrange(8), signed=False)
        case MysqlType.VECTOR:
            items = [rng.choice([0.0, 1.0, 2.5, -3e10, 1e-7]) for _ in range(rng.randint(0, 3))]
            return struct.pack(f"<I{len(items)}f", len(items), *items)
        case MysqlType.DECIMAL:
            return _decimal(rng, column.flen, column.decimal)
        case _:
            return random_json(rng)


def _compact(value: int, *, signed: bool) -> bytes:
    for size in (1, 2, 4):
        try:
            return value.to_bytes(size, "little", signed=signed)
        except OverflowError:
            continue
    return value.to_bytes(8, "little", signed=signed)


def _string(rng: random.Random, *, binary: bool) -> bytes:
    if binary or rng.random() < 0.05:
        return rng.choice([b"", b"x", b"\x00\xff\x80<", rng.randbytes(rng.randint(0, 20))])
    return rng.choice(TEXTS).encode() * rng.choice([1, 1, 3])


def _key_string(rng: random.Random, *, binary: bool) -> bytes:
    """Return a string of a key; of forty keys some are so long (a kilobyte) that the columnar mounter leaves them."""
    text = _string(rng, binary=binary)
    if rng.random() < 0.9:
        return text
    text = text or b"0"
    return text * (1024 // len(text) + rng.choice([0, 1]))


def _packed(rng: random.Random, *, stamp: bool = False) -> int:
    if rng.random() < 0.1:
        return 0
    year = rng.randint(1971, 2037) if stamp else rng.choice([0, 1, 1000, 2024, 9999])
    month, day = (rng.randint(1, 12), rng.randint(1, 28)) if stamp else (rng.randint(0, 12), rng.randint(0, 31))
    return pack_time(
        year, month, day, rng.randrange(24), rng.randrange(60), rng.randrange(60), rng.choice([0, 7, 999_999])
    )


def _nanoseconds(rng: random.Random) -> int:
    return (
        rng.choice([0, 1000, -1000, 1, -1])
        * rng.randrange(1, 3_020_399_000_000)
        % 3_020_399_000_000_000
        * rng.choice([1, -1])
    )


def _decimal(rng: random.Random, precision: int, fraction: int) -> bytes:
    digits = rng.choice([0, 1, precision // 2, precision])
    number = rng.randrange(10**digits) if digits else 0
    text = str(number).rjust(fraction + 1, "0")
    plain = f"{text[: len(text) - fraction]}.{text[len(text) - fraction :]}" if fraction else text
    return encode_decimal(rng.choice(["", "-"]) + plain, precision, fraction)


def random_json(rng: random.Random) -> bytes:
    """Return a binary JSON document; a few shapes are far more frequent than the rest."""
    return _json_node(_json_value(rng, 0))


def _json_value(rng: random.Random, depth: int) -> Any:
    scalars: list[Any] = [
        None,
        True,
        False,
        0,
        -7,
        2**63,
        2**64 - 1,
        1.0,
        -0.5,
        1e100,
        1e-20,
        1e15,
        rng.random(),
        *TEXTS,
        "long" * 50,
    ]
    choice = rng.random()
    if depth == 0 and choice < 0.6:
        return {"id": rng.randrange(-1000, 1000), "k": [rng.choice(TEXTS), {"d": rng.gauss(0, 10)}], "n": None}
    if depth < 3 and choice < 0.8:
        keys = sorted(
            rng.sample(["a", "b\n", "ключ", 'd"q', ""], rng.randint(0, 3)), key=lambda key: (len(key.encode()), key)
        )
        return {key: _json_value(rng, depth + 1) for key in keys}
    if depth < 3 and choice < 0.9:
        return [_json_value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    return rng.choice([*scalars, ("opaque", 252, b"\x00\xff"), ("time", -36_000_250_000_000)])


def _json_node(value: Any) -> bytes:
    match value:
        case None | bool():
            return b"\x04" + {None: b"\x00", True: b"\x01", False: b"\x02"}[value]
        case int():
            return b"\x09" + struct.pack("<q", value) if value < 2**63 else b"\x0a" + struct.pack("<Q", value)
        case float():
            return b"\x0b" + struct.pack("<d", value)
        case str():
            raw = value.encode()
            return b"\x0c" + _uvarint(len(raw)) + raw
        case ("opaque", int(tp), bytes(raw)):
            return bytes((0x0D, tp)) + _uvarint(len(raw)) + raw
        case ("time", nanoseconds):
            return b"\x11" + struct.pack("<qI", nanoseconds, 6)
        case dict():
            return b"\x01" + _json_container([*value.values()], [key.encode() for key in value])
        case _:
            return b"\x03" + _json_container(value, None)


def _json_container(values: list[Any], keys: list[bytes] | None) -> bytes:
    entries_at = 8 + 6 * len(keys or ())
    at = entries_at + 5 * len(values)
    key_entries = b""
    for key in keys or ():
        key_entries += struct.pack("<IH", at, len(key))
        at += len(key)
    entries, data = b"", b""
    for value in values:
        node = _json_node(value)
        if node[0] == 4:
            entries += node[:1] + node[1:].ljust(4, b"\0")
            continue
        entries += node[:1] + struct.pack("<I", at + len(data))
        data += node[1:]
    body = key_entries + entries + b"".join(keys or ()) + data
    return struct.pack("<II", len(values), 8 + len(body)) + body


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
