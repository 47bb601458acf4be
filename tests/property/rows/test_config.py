"""Configs and their storage form; lines of keys against a text that is built line by line."""

import json
import tomllib

from hypothesis import given
from hypothesis import strategies as st

from schemas.config.changefeed import load_changefeed
from schemas.config.parse.origin import Path
from schemas.config.parse.toml_lines import key_lines

URI = "kafka://h:9092/t"
TABLES = st.sampled_from(["*.*", "a.*", "!b.c", '"x y".t', r"/^a\d/.*"])
PARTITIONS = st.sampled_from(
    [{}, {"partition": "ts"}, {"dispatcher": "table"}, {"partition": "index-value", "index": "i"}, {"partition": "x"}]
)
DISPATCHERS = st.builds(
    lambda matcher, topic, partition: {"matcher": matcher, "topic": topic, **partition},
    st.lists(TABLES, max_size=3),
    st.sampled_from(["", "name", "{schema}_{table}", "p{table}"]),
    PARTITIONS,
)
KAFKA = st.fixed_dictionaries(
    {},
    optional={
        "partition-num": st.integers(1, 100),
        "max-message-bytes": st.integers(1, 2**31 - 1),
        "compression": st.sampled_from(["none", "gzip", "ZSTD"]),
        "required-acks": st.sampled_from([-1, 0, 1]),
        "read-timeout": st.integers(1, 10**7).map(lambda ms: f"{ms}ms"),
        "output-raw-change-event": st.booleans(),
        "codec-config": st.fixed_dictionaries({}, optional={"enable-tidb-extension": st.booleans()}),
    },
)
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "case-sensitive": st.booleans(),
        "memory-quota": st.integers(1, 2**40),
        "filter": st.fixed_dictionaries(
            {}, optional={"rules": st.lists(TABLES), "ignore-txn-start-ts": st.lists(st.integers(0, 2**63 - 1))}
        ),
        "sink": st.fixed_dictionaries(
            {"protocol": st.just("canal-json"), "kafka-config": KAFKA},
            optional={"dispatchers": st.lists(DISPATCHERS, max_size=3)},
        ),
    },
)


@given(CONFIGS)
def test_load_changefeed_any_table_kept_as_json_gives_the_same_config(table: dict[str, object]) -> None:
    uri = URI + "?protocol=canal-json"
    assert load_changefeed(uri, json.loads(json.dumps(table))) == load_changefeed(uri, table)


KEYS = st.sampled_from(["a", "b-c", "D_1", '"q.r"', "'s#t'"])
VALUES = st.sampled_from(
    ["1", "true", '"x = 1 # y"', "'[z]'", '"""\nk = 1\n"""', "'''\n''", "[\n1,\n]", "{m = [1, 2]}", '"a\\"b"', "-inf"]
)
LINES = st.lists(st.one_of(st.just(("", "")), st.just(("#", "c = 1")), st.tuples(KEYS, VALUES)), max_size=12)


@given(st.lists(LINES, min_size=1, max_size=4), st.sampled_from(["\n", "\r\n"]))
def test_key_lines_any_text_gives_the_line_of_every_key(blocks: list[list[tuple[str, str]]], newline: str) -> None:
    text, expected, seen = "", dict[Path, int](), set[Path]()
    for number, block in enumerate(blocks):
        if number:
            text += f"[[t]]{newline}"
        for key, value in block:
            value = value + "'" if value.endswith("''") and value.startswith("'''") else value
            path: Path = (("t", number - 1) if number else ()) + (key.strip("\"'"),)
            if key in ("", "#"):
                text += key + value + newline
            elif path not in seen:
                seen.add(path)
                expected[path] = text.count("\n") + 1
                text += f"{key} = {value} # {newline}".replace("\n", newline).replace("\r\r", "\r")
    tomllib.loads(text)
    lines = key_lines(text)
    assert {path: line for path, line in lines.items() if path in seen} == expected
