"""Texts, row hashes and table proofs against what a real TiDB computed (``tests/data/tidb-hash``)."""

from collections.abc import Iterable
from typing import Any

import pytest

from schemas.errors import ConfigError, CorruptDataError
from schemas.state_proof.column_kind import TextForm, column_kind
from schemas.state_proof.proof_sql import Dialect, ProofColumn, has_text, quoted, text_sql, totals_sql
from schemas.state_proof.row_text import TableProof, row_hash, text_hash, value_text
from tests.support.database.tidb_hash import RecordedValue, mounted, plain_digits, recorded_table, recorded_values

VALUES = recorded_values()


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{value.type} {value.literal}"[:60])
def test_value_text_of_a_recorded_value_is_tidbs(value: RecordedValue) -> None:
    assert value_text(value.kind, mounted(value)) == value.tidb_text


def test_recorded_values_are_all_there() -> None:
    assert len(VALUES) == 161
    assert {value.kind.form for value in VALUES} == set(TextForm)


def test_double_text_of_recorded_doubles_is_the_text_that_tidb_casts_them_to() -> None:
    """Of a FLOAT the recording has the double (``plus0``), not its text: doubles show how TiDB writes one."""
    doubles = [value for value in VALUES if value.kind.form is TextForm.DOUBLE and value.literal != "null"]
    assert len(doubles) >= 11
    for value in doubles:
        assert plain_digits(value.results["plus0"]) == bytes.fromhex(value.results["hex_cast_char"])


def aggregate(name: str) -> dict[str, Any]:
    recorded: dict[str, Any] = next(item for item in recorded_table()["aggregates"] if item["name"] == name)
    return recorded


def cut(text: bytes | None) -> bytes | None:
    try:
        return text if text is None else text.decode().encode()
    except UnicodeDecodeError as error:
        return error.object[: error.start]


def proof_of(rows: Iterable[bytes]) -> TableProof:
    """The product's row hash, of rows whose text another expression of TiDB's makes."""
    proof = TableProof()
    for row in rows:
        proof = proof.changed(None, text_hash(row))
    return proof


def test_text_hash_of_the_recorded_rows_comes_to_tidbs_aggregate() -> None:
    """``xor_md5_concat_ws``: columns that are no NULL, then a flag of each that is."""
    rows = []
    for row in recorded_table()["rows_hex_cast_char"]:
        flags = "".join(str(int(cell is None)) for cell in row).encode()
        rows.append(b",".join([*(bytes.fromhex(cell) for cell in row if cell is not None), flags]))
    proof = proof_of(rows)
    assert [str(proof.rows), str(proof.xor)] == aggregate("xor_md5_concat_ws")["result"][:2]


def test_row_hash_of_the_recorded_rows_comes_to_tidbs_aggregate_of_hexadecimal_texts() -> None:
    """In this aggregate TiDB cut what it cast from bytes to characters at the first byte that is no UTF-8; in the
    recorded rows it did not. Therefore our statement casts no bytes to characters.
    """
    names = recorded_table()["columns"]
    proof = TableProof()
    for row in recorded_table()["rows_hex_cast_char"]:
        texts = [None if cell is None else bytes.fromhex(cell) for cell in row]
        shown = [cut(text) if name in {"b", "bi"} else text for name, text in zip(names, texts, strict=True)]
        proof = proof.changed(None, row_hash(shown))
    assert [str(proof.rows), str(proof.xor)] == aggregate("xor_md5_cast_char")["result"]


def test_table_proof_carried_over_changes_is_the_proof_of_what_is_left() -> None:
    rows = [row_hash([str(number).encode(), b"x"]) for number in range(5)]
    carried = TableProof().changed(None, rows[0]).changed(None, rows[1]).changed(rows[0], rows[2])
    carried = carried.changed(None, rows[3]).changed(rows[1], None)
    assert carried == TableProof().changed(None, rows[3]).changed(None, rows[2])


def test_row_hash_tells_two_values_that_changed_places() -> None:
    """CRC32 is affine: the XOR of two rows' sums is the same when two values of one length change places."""
    before = row_hash([b"1", b"aa"]) ^ row_hash([b"2", b"bb"])
    after = row_hash([b"1", b"bb"]) ^ row_hash([b"2", b"aa"])
    assert before != after


def test_row_hash_tells_null_from_empty_and_where_a_column_ends() -> None:
    assert len({row_hash(row) for row in ([b"", None], [None, b""], [b",", b""], [b"", b","], [b"~", b""])}) == 5


@pytest.mark.parametrize(
    ("column_type", "value"),
    [("int", "x"), ("enum", 1), ("bit", 1), ("enum('a')", 2), ("varchar(3)", 1.5), ("decimal(5,2)", "x")],
)
def test_value_text_of_what_the_type_has_not_is_refused(column_type: str, value: str | int | float) -> None:
    with pytest.raises(CorruptDataError):
        value_text(column_kind(column_type), value)


def test_vectors_of_avro_have_the_text_of_canal_jsons() -> None:
    assert [value_text(column_kind(name), "[1,2.5]") for name in ("TiDBVECTORFloat32", "vector")] == [b"[1,2.5]"] * 2


def test_column_kind_of_an_unknown_type_is_refused() -> None:
    for column_type in ("geometry", "", "'"):
        with pytest.raises(ConfigError):
            column_kind(column_type)


def test_names_in_statements_stay_names() -> None:
    name = "a`) or 1=1 -- %s"
    assert quoted(name) == "`a``) or 1=1 -- %%s`"
    column = ProofColumn(name, column_kind("int"))
    for dialect in Dialect:
        assert text_sql(dialect, column) == f"cast({quoted(name)} as char)"
        assert totals_sql(dialect, (name, name), [column]).count("%s") == totals_sql(
            dialect, (name, name), [column]
        ).count("%%s")


def test_json_of_mysql_has_no_text_of_tidbs() -> None:
    assert [has_text(dialect, column_kind("json")) for dialect in Dialect] == [True, True, False]
