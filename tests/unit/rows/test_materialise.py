"""TiCDC's own recorded messages, materialised, against TiDB's own SELECT: proof that the comparison itself is right."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.recorded.recording import oracle
from tests.support.recorded.recording_checks import checks, enum_names
from tests.support.topics.materialise import Contents, Table, differences, explained, message_of, plain
from tests.support.topics.messages import AvroDecoder, Message, TopicRecord, decode_canal_json

Lines = Iterator[tuple[int, Message]]


def canal_json() -> Lines:
    for line in oracle("encoded/canal-json"):
        key, value = message_of(line)
        yield line["commit_ts"], decode_canal_json(TopicRecord("t", 0, 0, key, value))


def avro() -> Lines:
    schemas: dict[int, Any] = {}
    decode = AvroDecoder(lambda schema_id: schemas[schema_id])
    for line in oracle("encoded/avro"):
        if line["op"] == "avro_schema":
            schemas[line["schema_id"]] = line["schema"]
        elif "error" not in line:
            key, value = message_of(line)
            yield line["commit_ts"], decode(TopicRecord("t", 0, 0, key, value))


@pytest.mark.parametrize(
    ("stream", "compared_min", "own_exceptions"),
    [
        (canal_json, 150, {}),
        (
            avro,
            120,
            {
                "d1.t_all": "an insert that TiCDC's Avro encoder refuses (README: encoded/)",
                "d1.t_nc": "an update of the key that the recording did not split; Avro has no old value",
                "d1.t_cc": "an update of the key that the recording did not split; Avro has no old value",
            },
        ),
    ],
)
def test_materialise_recorded_messages_give_what_select_returned(
    stream: Callable[[], Lines], compared_min: int, own_exceptions: dict[str, str]
) -> None:
    elements, contents, messages = enum_names(), Contents(), stream()
    upcoming, compared, failures = next(messages, None), 0, []
    for check in checks():
        while upcoming is not None and upcoming[0] <= int(check["read_ts"]):
            contents.apply(upcoming[1])
            upcoming = next(messages, None)
        name = check["check"].replace("`", "")
        result = check["result"]
        if name in own_exceptions or explained(name, contents):
            continue
        complaints = differences(
            contents.tables.get(name, Table()),
            result["columns"],
            result["types"],
            result["rows"],
            elements.get(name, {}),
        )
        failures += [
            f"{name} at {check['read_ts']}: {text}" for text in complaints if not explained(f"{name}: {text}", contents)
        ]
        compared += 1
    assert failures == []
    assert compared >= compared_min


def test_materialise_lost_message_is_seen() -> None:
    check = next(check for check in checks() if check["check"] == "`d1`.`t_upk`")
    result = check["result"]
    rows = [m for ts, m in canal_json() if m.name == "d1.t_upk" and m.kind == "row" and ts <= int(check["read_ts"])]
    complaints = []
    for messages in (rows, rows[:-1]):
        contents = Contents()
        for message in messages:
            contents.apply(message)
        complaints.append(
            list(differences(contents.tables["d1.t_upk"], result["columns"], result["types"], result["rows"], {}))
        )
    assert (complaints[0], bool(complaints[1])) == ([], True)


@pytest.mark.parametrize(
    ("value", "cell", "select_type", "message_type", "equal"),
    [
        ("1.5", "1.50", "DECIMAL", "decimal", True),
        ("1.5", "1.51", "DECIMAL", "decimal", False),
        ("2", "b", "CHAR", "enum", True),
        ("5", "a,c", "CHAR", "set", True),
        ("a,c", "a,c", "CHAR", "set", True),
        ("2", "2", "CHAR", "char", True),
        ("\x00\xff", {"hex": "00ff"}, "BLOB", "blob", True),
        (b"\x00\xff", {"hex": "00fe"}, "BLOB", "blob", False),
        ("341", {"hex": "0155"}, "BIT", "bit", True),
        (-1, "18446744073709551615", "UNSIGNED BIGINT", "bigint unsigned", True),
        (-1, "18446744073709551615", "BIGINT", "bigint", False),
        ("3.1415925", "3.14159", "FLOAT", "float", True),
        ("3.14259", "3.14159", "FLOAT", "float", False),
        (None, None, "INT", "int", True),
        (None, "0", "INT", "int", False),
        ("", None, "CHAR", "char", False),
    ],
)
def test_materialise_cell_compares_by_meaning(
    value: Any, cell: Any, select_type: str, message_type: str, equal: bool
) -> None:
    assert (plain(value, select_type, message_type, ["a", "b", "c"]) == plain(cell, select_type)) == equal
