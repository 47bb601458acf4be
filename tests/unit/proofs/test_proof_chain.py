"""Proofs in a chain: what is altered, taken out, out of turn or does not come out even is named."""

import json
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from compose.cli import run_cli
from compose.cli.proof_commands import proofs
from schemas.errors import CorruptDataError
from schemas.flow.chain import ChainReport, Fault, check_chain
from schemas.flow.flow_sum import NOTHING, FlowSum
from schemas.flow.proof import TABLES_MAX, Proof, ProofWindow, decode_proof, follow_up, is_unaltered, join_windows
from schemas.ids import TableId, Ts
from sorters.core.flow.proof_pace import BUSY_S, IDLE_S, takes

NAME = ("default", "feed")


def window(after_ts: int, upto_ts: int, rows: int = 3) -> ProofWindow:
    each = FlowSum(rows, 7 * rows)
    return ProofWindow(
        after_ts=Ts(after_ts), upto_ts=Ts(upto_ts), landed=each + FlowSum(1, 5),
        left_out={"event_filter": FlowSum(1, 5)}, written=each, tables={TableId(9): each}, tables_total=1,
    )  # fmt: skip


def chain(*windows: ProofWindow, name: tuple[str, str] = NAME, head: Proof | None = None) -> list[bytes]:
    contents = []
    for each in windows:
        content, head = follow_up(head, name, each)
        contents.append(content)
    return contents


WHOLE = chain(*(window(at, at + 10) for at in range(0, 50, 10)))


def faults(report: ChainReport) -> list[tuple[int, Fault]]:
    return [(finding.line, finding.fault) for finding in report.findings]


def altered(content: bytes, **fields: Any) -> bytes:
    return json.dumps({**json.loads(content), **fields}, sort_keys=True, separators=(",", ":")).encode()


def test_a_chain_as_it_was_written_has_no_fault_also_where_retention_took_its_begin() -> None:
    report = check_chain(WHOLE)
    assert (faults(report), report.unproved, report.records, report.rows) == ([], [], 5, 15)
    assert report.heads[NAME].window.upto_ts == 50
    assert faults(check_chain(WHOLE[2:])) == []


def test_chains_of_several_changefeeds_in_one_topic_are_checked_each_by_itself() -> None:
    other = chain(window(0, 10), window(10, 40), name=("default", "other"))
    assert faults(check_chain([WHOLE[0], other[0], *WHOLE[1:3], other[1], *WHOLE[3:]])) == []


@pytest.mark.parametrize("taken", range(1, 4))
def test_a_record_that_was_taken_out_is_named_by_the_one_that_follows_it(taken: int) -> None:
    report = check_chain(WHOLE[:taken] + WHOLE[taken + 1 :])
    assert faults(report) == [(taken + 1, Fault.MISSING)]
    assert f"record {taken} is not there" in report.findings[0].said


@pytest.mark.parametrize(
    "fields",
    [{"number": 7}, {"written": "4:0000000000000015"}, {"upto_ts": 31}, {"left_out": {}}, {"tables": {}}, {"more": 1}],
)
def test_a_record_that_was_altered_is_named_also_where_it_is_the_last(fields: dict[str, Any]) -> None:
    for at in (2, 4):
        report = check_chain([*WHOLE[:at], altered(WHOLE[at], **fields), *WHOLE[at + 1 :]])
        assert (at + 1, Fault.ALTERED) in faults(report)
    assert faults(check_chain([*WHOLE[:4], WHOLE[4].replace(b'"cuts":1', b'"cuts": 1')])) == [(5, Fault.ALTERED)]


def test_a_record_that_was_made_anew_after_the_fact_does_not_fit_the_next() -> None:
    head = decode_proof(WHOLE[1])
    (forged,) = chain(window(20, 30, rows=2), head=head)
    assert faults(check_chain([*WHOLE[:2], forged, *WHOLE[3:]])) == [(4, Fault.MISSING)]


def test_rows_that_do_not_come_out_even_are_named() -> None:
    uneven = replace(window(10, 20), written=FlowSum(2, 14))
    report = check_chain(chain(window(0, 10), uneven))
    assert faults(report) == [(2, Fault.UNEVEN)]
    assert "(10, 20]: 1:0000000000000007" in report.findings[0].said


def test_a_window_that_does_not_join_says_that_another_run_has_begun_and_what_nobody_told() -> None:
    contents = chain(window(0, 10), window(10, 30), window(20, 40), window(50, 60))
    assert [decode_proof(content).begins for content in contents] == ["first", "", "run", "run"]
    report = check_chain(contents)
    assert faults(report) == []
    assert [(gap.line, gap.after_ts, gap.upto_ts) for gap in report.unproved] == [(4, 40, 50)]
    apart = altered(contents[1], after_ts=12)
    assert (2, Fault.NOT_JOINED) in faults(check_chain([contents[0], apart]))


def test_two_holders_that_follow_the_same_record_are_no_fault() -> None:
    head = decode_proof(WHOLE[1])
    (zombie,) = chain(window(20, 25), head=head)
    assert faults(check_chain([*WHOLE[:2], zombie, *WHOLE[2:]])) == []


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"version":2}', b"\xff", b"[" * 100_000, WHOLE[0][:-2]])
def test_bytes_that_are_no_record_are_refused_and_named(content: bytes) -> None:
    with pytest.raises(CorruptDataError, match="no proof"):
        decode_proof(content)
    assert faults(check_chain([WHOLE[0], content, WHOLE[1]])) == [(2, Fault.UNREADABLE)]


def test_windows_that_follow_one_another_are_joined_and_name_their_largest_tables() -> None:
    many = {TableId(at): FlowSum(at, at) for at in range(1, 100)}
    total = sum(many.values(), NOTHING)
    wide = ProofWindow(after_ts=Ts(10), upto_ts=Ts(20), landed=total, written=total, tables=many, tables_total=99)
    joined = join_windows(window(0, 10), wide)
    assert (joined.after_ts, joined.upto_ts, joined.cuts, joined.rest) == (0, 20, 2, NOTHING)
    assert joined.tables[TableId(9)] == FlowSum(12, 30)
    content, head = follow_up(None, NAME, joined)
    read = decode_proof(content)
    assert is_unaltered(content)
    assert read.hash == head.hash
    assert (len(read.window.tables), read.window.tables_total) == (TABLES_MAX, 99)
    assert min(read.window.tables) == 99 - TABLES_MAX + 1


def test_a_record_is_due_a_second_after_the_last_with_rows_and_a_minute_without() -> None:
    quiet = ProofWindow(after_ts=Ts(1), upto_ts=Ts(2))
    assert [takes(window(0, 1), at) for at in (BUSY_S - 0.1, BUSY_S)] == [False, True]
    assert [takes(quiet, at) for at in (BUSY_S, IDLE_S - 1, IDLE_S)] == [False, False, True]


def test_command_says_what_is_wrong_with_a_file_and_fails(tmp_path: Any) -> None:
    file = tmp_path / "proofs"
    file.write_bytes(b"\n".join(WHOLE) + b"\n")
    said = CliRunner().invoke(proofs, ["check", str(file)], standalone_mode=False)
    assert (said.return_value, "5 records, 15 rows written, 0 faults" in said.output) == (0, True)
    assert f"record 4, ts 50, hash {decode_proof(WHOLE[4]).hash}" in said.output
    file.write_bytes(b"\n".join([*WHOLE[:2], *WHOLE[3:]]) + b"\n")
    said = CliRunner().invoke(proofs, ["check", str(file)], standalone_mode=False)
    assert (said.return_value, "line 3: missing: record 2 is not there" in said.output) == (1, True)
    file.write_bytes(b"\n".join(WHOLE[2:]) + b"\n")
    said = CliRunner().invoke(proofs, ["check", str(file)], standalone_mode=False)
    assert (said.return_value, "note: begins with record 2;" in said.output) == (0, True)


def test_file_without_a_record_proves_nothing_and_fails(tmp_path: Any) -> None:
    file = tmp_path / "proofs"
    file.write_bytes(b"")
    said = CliRunner().invoke(proofs, ["check", str(file)], standalone_mode=False)
    assert (said.return_value, "proves nothing" in said.output) == (1, True)


def test_export_of_a_changefeed_without_records_is_no_empty_file(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("compose.operator.proofs.read_proofs", lambda *_: iter(()))
    assert run_cli(["proofs", "export", "--kafka", "h:1", "--changefeed", "ordres"]) == 1
    said = capfd.readouterr()
    assert said.out == "" and "[proofs.none]" in said.err and "changefeed=ordres" in said.err
