"""What a real TiDB computed (``tests/data/tidb-hash``), and the values as our mounter gives them."""

import io
import json
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import zstandard

from schemas.state_proof.column_kind import ColumnKind, TextForm, column_kind
from schemas.tidb.value import Value
from tests.support.sources.repository import ROOT

FOLDER = ROOT / "tests" / "data" / "tidb-hash"
_ESCAPES = {"0": "\0", "n": "\n", "t": "\t"}


@dataclass(frozen=True, slots=True)
class RecordedValue:
    """One value: its column's type, the SQL literal that was inserted, and TiDB's results by expression."""

    type: str
    literal: str
    results: dict[str, Any]

    @property
    def kind(self) -> ColumnKind:
        return column_kind(self.type)

    @property
    def tidb_text(self) -> bytes | None:
        """The text of TiDB's proof: of a float the text of its double, which stands in ``plus0``."""
        if self.kind.form is TextForm.FLOAT and self.results["plus0"] is not None:
            return plain_digits(self.results["plus0"])
        is_binary = self.kind.form in {TextForm.BYTES, TextForm.BIT}
        shown = self.results["hex_cast_binary" if is_binary else "hex_cast_char"]
        return None if shown is None else bytes.fromhex(shown)


@cache
def recorded_values() -> tuple[RecordedValue, ...]:
    lines = [json.loads(line) for line in _lines("values.jsonl.zst")]
    return tuple(RecordedValue(line["type"], line["value"], line) for line in lines)


@cache
def recorded_table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads("\n".join(_lines("table.json.zst")))
    return table


def column_types(ddl: str) -> dict[str, str]:
    """Return the types of the recorded table's columns, by name."""
    return dict(re.findall(r"^  `(\w+)` (\w+(?:\([^)]*\))?)", ddl, re.MULTILINE))


def plain_digits(text: str) -> bytes:
    """Return ``1e-05`` as 0.00001: by shifting the point of the digits, one by one."""
    sign, text = ("-", text[1:]) if text.startswith("-") else ("", text)
    mantissa, _, exponent = text.partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits, point = list(whole + fraction), len(whole) + int(exponent or 0)
    while point <= 0:
        digits.insert(0, "0")
        point += 1
    while point > len(digits):
        digits.append("0")
    left, right = "".join(digits[:point]), "".join(digits[point:]).rstrip("0")
    left = left.lstrip("0") or "0"
    return ((sign if left + right != "0" else "") + left + (f".{right}" if right else "")).encode()


def mounted(value: RecordedValue) -> Value:
    """Return the value as our mounter gives it, read from the SQL literal that was inserted."""
    if value.literal == "null":
        return None
    form, literal = value.kind.form, value.literal
    match form:
        case TextForm.INTEGER | TextForm.YEAR:
            return int({"true": "1"}.get(literal, literal))
        case TextForm.FLOAT | TextForm.DOUBLE:
            digits = re.search(r"\((\d+),(\d+)\)", value.type)
            return round(float(literal), int(digits[2])) if digits else float(literal)
        case TextForm.DECIMAL:
            return _scaled(literal, int(re.findall(r"\d+", value.type)[1]))
        case TextForm.BIT:
            return int.from_bytes(_bytes(literal), "big")
        case TextForm.VECTOR:
            return tuple(json.loads(literal.strip("'")))
        case TextForm.ENUM | TextForm.SET:
            return _number(value.kind, literal)
        case TextForm.JSON:
            return bytes.fromhex(value.results["hex_cast_char"]).decode()
        case TextForm.TIME:
            return literal.strip("'")
        case _:
            return _stored(value.type, _bytes(literal))


def _scaled(literal: str, scale: int) -> str:
    whole, _, fraction = literal.partition(".")
    return f"{whole}.{fraction.ljust(scale, '0')}" if scale else whole


def _number(kind: ColumnKind, literal: str) -> int:
    assert kind.elems is not None
    if literal.isdigit():
        return int(literal)
    text = _bytes(literal).decode()
    if kind.form is TextForm.ENUM:
        return kind.elems.index(text) + 1
    return sum(1 << kind.elems.index(name) for name in text.split(",") if name)


def _stored(column_type: str, data: bytes) -> bytes:
    """A BINARY is stored with zeros behind it, a CHAR without its last blanks."""
    if column_type.startswith("binary("):
        return data.ljust(int(column_type[7:-1]), b"\0")
    return data.rstrip(b" ") if column_type.startswith("char(") else data


def _bytes(literal: str) -> bytes:
    if match := re.fullmatch(r"x'([0-9a-f]*)'", literal):
        return bytes.fromhex(match[1])
    if match := re.fullmatch(r"b'([01]*)'", literal):
        return int(match[1], 2).to_bytes((len(match[1]) + 7) // 8, "big")
    if match := re.fullmatch(r"repeat\((.*),(\d+)\)", literal):
        return _bytes(match[1]) * int(match[2])
    assert literal[0] == literal[-1] == "'", literal
    text = literal[1:-1].replace("''", "'")
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text, flags=re.DOTALL).encode()


def _lines(name: str) -> list[str]:
    with (FOLDER / name).open("rb") as file:
        text = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), "utf-8").read()
    return text.rstrip("\n").split("\n")
