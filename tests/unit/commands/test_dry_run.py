"""The dry run against what TiCDC's own code made of the same recording (tests/data/tidb)."""

import base64
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compose.cli import run_cli
from compose.foresight.dry_run import DryRun, prepare
from schemas.config.changefeed import load_changefeed
from schemas.errors import BusError
from tests.support.recorded.job_rows import EARLY_ROWS, EARLY_TS, early_job_over, is_early_row
from tests.support.recorded.recording import oracle as read_lines

DATA = Path(__file__).parents[2] / "data" / "tidb"
LOSSY_SOURCE_BITS = 0xFF00
"""txn_source of rows that a lossy DDL's reorganisation wrote; TiKV does not deliver them."""
ROW_OPS = ("insert", "update", "delete")
# The oracle's rows were encoded one by one and not split, each table in a topic of its own.
BASE = "kafka://127.0.0.1:9092/default?enable-tidb-extension=true"
NOT_SPLIT = {"sink": {"kafka-config": {"output-raw-change-event": True}}}
TABLE_TOPICS = {"sink": NOT_SPLIT["sink"] | {"dispatchers": [{"matcher": ["*.*"], "topic": "{schema}_{table}"}]}}


def test_dry_run_mounted_equals_ticdcs_mounter() -> None:
    run = prepare(DATA, load_changefeed(f"{BASE}&protocol=canal-json", NOT_SPLIT), refused=_raise)
    wanted = [row for row in read_lines("mounted") if not row.get("txn_source", 0) & LOSSY_SOURCE_BITS]
    mounted = list(run.mounted())
    assert len(mounted) == len(wanted)
    early = 0
    for mine, oracle in zip(sorted(mounted, key=_place), sorted(wanted, key=_place), strict=True):
        oracle["table_version"] = EARLY_TS.get(oracle["table_version"], oracle["table_version"])
        early += _as_of_its_table(oracle, wanted)
        # Where TiCDC's checksum code panicked the oracle says so; there is no value to compare.
        assert mine == {name: value for name, value in oracle.items() if name != "checksum_error"}
    assert early == EARLY_ROWS


def test_dry_run_mounted_with_force_replicate_brings_tables_without_a_key() -> None:
    run = prepare(
        DATA, load_changefeed(f"{BASE}&protocol=canal-json", NOT_SPLIT | {"force-replicate": True}), refused=_raise
    )
    tables = {row["table"] for row in read_lines("mounted_force_replicate")}
    mounted = [row for row in run.mounted() if row["table"] in tables]
    wanted = Counter(json.dumps(row, sort_keys=True) for row in read_lines("mounted_force_replicate"))
    assert wanted - Counter(json.dumps(row, sort_keys=True) for row in mounted) == Counter()


@pytest.fixture(scope="module")
def canal_run() -> tuple[DryRun, list[BusError]]:
    refused: list[BusError] = []
    config = load_changefeed(f"{BASE}&protocol=canal-json", TABLE_TOPICS)
    return prepare(DATA, config, refused=refused.append), refused


def test_dry_run_canal_json_rows_equal_ticdcs_messages(
    canal_run: tuple[DryRun, list[BusError]],
) -> None:
    mine = [line for line in canal_run[0].records() if line["op"] in ROW_OPS]
    oracle = [line for line in read_lines("encoded/canal-json") if line["op"] in ROW_OPS]
    _assert_same(_canal(_not_early(mine)), _canal(_not_early(oracle)))


def test_dry_run_canal_json_ddl_equals_ticdcs_messages(canal_run: tuple[DryRun, list[BusError]]) -> None:
    run, refused = canal_run
    mine = {(line["commit_ts"], line["value"]): line for line in run.records() if line["op"] == "ddl"}
    oracle = (line for line in read_lines("encoded/canal-json") if line["op"] == "ddl")
    # A DDL message goes to every partition of its topic; the oracle has it once.
    said, wanted = _canal(iter(mine.values())), _canal(oracle)
    at_ours = [message for message in said.elements() if message[0] in EARLY_TS.values()]
    at_theirs = [message for message in wanted.elements() if message[0] in EARLY_TS]
    assert [EARLY_TS[message[0]] for message in at_theirs] == [message[0] for message in at_ours]
    assert [_without_ts(message) for message in at_theirs] == [_without_ts(message) for message in at_ours]
    _assert_same(said - Counter(at_ours), wanted - Counter(at_theirs))
    would_fail = {line["commit_ts"] for line in read_lines("ddl_events") if "error:" in line.get("not_sent", "")}
    assert {error.fields.get("commit_ts") for error in refused} == would_fail


def test_dry_run_avro_rows_equal_ticdcs_messages_byte_for_byte() -> None:
    ids = {
        (line["subject"], _schema(line["schema"])): line["schema_id"]
        for line in read_lines("encoded/avro")
        if line["op"] == "avro_schema"
    }
    refused: list[BusError] = []
    uri = f"{BASE}&protocol=avro&schema-registry=http://127.0.0.1:1"
    run = prepare(
        DATA,
        load_changefeed(uri, TABLE_TOPICS),
        refused=refused.append,
        # A schema text that TiCDC did not register gets an id that no oracle message has.
        register=lambda subject, text: ids.get((subject, _schema(text)), 0),
    )
    mine = Counter(_avro(line) for line in _not_early([line for line in run.records() if line["op"] in ROW_OPS]))
    lines = list(_not_early([line for line in read_lines("encoded/avro") if line["op"] in ROW_OPS]))
    oracle = Counter(_avro(line) for line in lines if "error" not in line)
    assert mine - oracle == Counter()
    assert oracle - mine == Counter()
    refused_rows = [error.fields["commit_ts"] for error in refused if error.code == "sink.encode_refused"]
    assert refused_rows == [line["commit_ts"] for line in lines if "error" in line]


def test_dry_run_order_is_by_position_and_watermarks_close_what_is_before_them() -> None:
    run = prepare(
        DATA, load_changefeed(f"{BASE}&protocol=canal-json", NOT_SPLIT), refused=_ignore, watermark_every_ms=500
    )
    last_ts, watermark, ops = 0, 0, Counter[str]()
    for line in run.records():
        ops[line["op"]] += 1
        assert line["commit_ts"] >= last_ts
        last_ts = line["commit_ts"]
        if line["op"] == "watermark":
            watermark = line["commit_ts"]
        else:
            assert line["commit_ts"] > watermark
    assert ops["watermark"] > 3 and watermark == last_ts


def test_dry_run_without_recording_ends_with_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["dry-run", "--recording", str(tmp_path)]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: [bus.config] recording not found") and shown.count("\n") == 1


def test_dry_run_with_unknown_config_key_names_key_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "changefeed.toml"
    file.write_text("[filter]\nrules = ['*.*']\nrulez = []\n")
    assert run_cli(["dry-run", "--recording", str(DATA), "--config", str(file)]) == 2
    shown = capsys.readouterr().err
    assert "filter.rulez" in shown and "line=3" in shown and shown.count("\n") == 1


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["commit_ts"], row["start_ts"], row["table_id"], row["key"], row["op"]


def _as_of_its_table(oracle: dict[str, Any], wanted: list[dict[str, Any]]) -> bool:
    """Change a row that TiCDC mounted by the schema before an early job to one by the schema after; tell if it is one.

    Its columns are described as TiCDC describes them of the table's next row.
    """
    table = f"{oracle['schema']}.{oracle['table']}"
    job = early_job_over(table, oracle["commit_ts"])
    if job is None or not job.values:
        return False
    home = oracle["schema"], oracle["table"]
    after = next(row for row in wanted if (row["schema"], row["table"]) == home and row["commit_ts"] > job.done_ts)
    oracle["table_version"] = job.ts
    for side in ("columns", "pre_columns"):
        values = {column["name"]: column["value"] for column in oracle[side]} | job.values
        oracle[side] = [column | {"value": values[column["name"]]} for column in after[side]]
    return True


def _not_early(lines: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the messages but those of rows that TiCDC took by the schema before; they are as many on both sides."""
    kept = [line for line in lines if not is_early_row(line)]
    assert len(lines) - len(kept) == EARLY_ROWS
    yield from kept


def _without_ts(message: tuple[Any, ...]) -> str:
    return re.sub(r"\('(es|commitTs)', \d+\)", r"('\1', ?)", str(message[3]))


def _raise(error: BusError) -> None:
    raise error


def _ignore(error: BusError) -> None:
    """For tests that do not look at what is refused."""


def _canal(lines: Iterator[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """Count messages by what they say: everything but ``ts``, the moment of encoding.

    Member order counts, except in ``mysqlType``, where TiCDC's is that of a Go map: another one in every message.
    """

    def members(pairs: list[tuple[str, Any]]) -> Any:
        return tuple((name, _sorted(value) if name == "mysqlType" else value) for name, value in pairs if name != "ts")

    def said(line: dict[str, Any]) -> Any:
        return repr(json.loads(base64.b64decode(line["value"]), object_pairs_hook=members, parse_float=str))

    return Counter((line["commit_ts"], line["op"], line["key"], said(line)) for line in lines)


def _sorted(members: Any) -> Any:
    return tuple(sorted(members)) if members else members


def _assert_same(mine: Counter[tuple[Any, ...]], oracle: Counter[tuple[Any, ...]]) -> None:
    missing, extra = oracle - mine, mine - oracle
    shown = [sorted(side, key=repr)[:2] for side in (missing, extra)]
    assert not missing and not extra, f"{len(missing)} missing, {len(extra)} extra, first ones: {shown}"


def _avro(line: dict[str, Any]) -> tuple[Any, ...]:
    return line["commit_ts"], line["start_ts"], line["table"], line["op"], line["key"], line["value"]


def _schema(text: Any) -> str:
    return json.dumps(json.loads(text) if isinstance(text, str) else text, sort_keys=True)
