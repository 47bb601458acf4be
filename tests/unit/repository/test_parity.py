"""docs/parity.md is what our code answers for each of TiCDC's things, and none of them is passed over in silence."""

from collections import Counter

import pytest

from tests.parity.api import judge_fields, recorded_configs
from tests.parity.commands import FLAGS, RECORDED, call_of, command_of
from tests.parity.events import judge_content
from tests.parity.evidence import field_of, is_read, names_it
from tests.parity.page import PAGE, SECTIONS, judged, page_text
from tests.parity.rows import FAULTS, Mark, Row, Verdict, read_rows
from tests.parity.settings import judge_key, judge_parameter

ROWS = {"config": 202, "uri": 139, "cli": 111, "api": 85, "content": 97, "metrics": 344, "server": 105, "features": 40}
"""As many as the comparison with TiCDC has; none may be lost."""


@pytest.fixture(scope="module")
def verdicts() -> list[tuple[Row, Verdict]]:
    return [pair for _, rows in judged() for pair in rows]


def test_every_row_of_the_comparison_is_there_once() -> None:
    items = [row.item for section in SECTIONS for row in read_rows(section.file)]
    assert {section.file: len(read_rows(section.file)) for section in SECTIONS} == ROWS
    assert [item for item, count in Counter(items).items() if count > 1] == []


def test_nothing_is_silent_and_no_key_is_unknown(verdicts: list[tuple[Row, Verdict]]) -> None:
    assert [(row.item, verdict.how) for row, verdict in verdicts if verdict.mark in FAULTS] == []
    assert all(verdict.how for _, verdict in verdicts)


def test_page_is_what_the_rows_come_to() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_text(), "run `python -m tests.parity.page`"


@pytest.mark.parametrize(
    ("judge", "row", "mark"),
    [
        (judge_key, Row("no-such-key", "", "canal-json | no-such-key = 1", "", ""), Mark.UNKNOWN),
        (judge_key, Row("memory-quota", "", "canal-json | memory-quota = 5", "", ""), Mark.NO_EFFECT),
        (judge_key, Row("active", "", "mysql | enable-active-active = true", "", ""), Mark.REFUSED),
        (judge_key, Row("bdr-mode", "", "canal-json | bdr-mode = true", "tests/unit/no_such_test", ""), Mark.SILENT),
        (judge_parameter, Row("x", "", "mysql://root@h/?no-such=1 | no-such", "", ""), Mark.UNKNOWN),
        (judge_parameter, Row("x", "", "", "", ""), Mark.SILENT),
        (judge_parameter, Row("x", "", "", "", "a reason"), Mark.NOT_HERE),
        (judge_content, Row("metric ticdc_no_such", "", "", "", ""), Mark.SILENT),
        (judge_content, Row("metric ticdc_owner_status", "", "", "tests/unit/no_such_test", ""), Mark.SILENT),
        (judge_content, Row("metric ticdc_owner_resolved_ts", "", "", "", ""), Mark.SAME),
        (judge_content, Row("metric ticdc_scheduler_table", "", "", "", ""), Mark.DIFFERS),  # it lacks labels
        (judge_content, Row("metric ticdc_sink_mq_worker_batch_size", "", "", "", ""), Mark.SAME),  # a histogram
    ],
)
def test_a_fault_is_seen(judge: object, row: Row, mark: Mark) -> None:
    assert callable(judge)
    verdict = judge(row)
    assert verdict.mark is mark


def test_evidence_needs_a_reader() -> None:
    assert field_of("sink.dispatchers[].target-schema") == "target_schema" and field_of("sink.no-such") is None
    assert is_read("sink.cloud-storage-config.output-column-id") and is_read("synced-status.checkpoint-interval")
    assert is_read("filter.event-filters[].ignore-update-new-value-expr")
    assert not is_read("mounter.worker-num")


OWN = "tests/unit/repository/test_parity.py"


@pytest.mark.parametrize(
    ("test", "names", "is_evidence"),
    [
        (f"{OWN}::test_evidence_needs_a_reader", ["worker-num"], True),
        (f"{OWN}::test_evidence_needs_a_reader", ["worker"], False),  # a part of a word is none
        (f"{OWN}::test_page_is_what_the_rows_come_to", ["worker-num"], False),  # another function of the file
        (f"{OWN}::test_every_row_of_the_comparison_is_there_once", ["features"], True),  # a constant that it uses
        (f"{OWN}::test_a_fault_is_seen:judge_key", ["x"], True),
        (f"{OWN}::test_a_fault_is_seen:judge_nothing", ["judge_key"], False),
        (OWN, ["worker-num"], False),  # a file alone
        (f"{OWN}::verdicts", ["judged"], False),  # no test
        ("tests/parity/evidence.py::names_it", ["names"], False),
        ("", [""], False),
    ],
)
def test_evidence_is_a_test_function_that_names_the_thing(test: str, names: list[str], is_evidence: bool) -> None:
    assert names_it(test, *names) is is_evidence


@pytest.mark.parametrize(
    ("probe", "test"),
    [
        ("cli changefeed query -s", RECORDED),
        ("cli changefeed query --simple", RECORDED),  # by its other name
        ("cli changefeed create -k", FLAGS),
        ("cli changefeed list --ca", ""),
        ("cli capture drain", ""),
    ],
)
def test_verb_and_flag_are_those_of_a_call(probe: str, test: str) -> None:
    *words, last = probe.split()
    option = last if last.startswith("-") else ""
    words += [] if option else [last]
    command = command_of(words)
    assert command is not None
    called = call_of(words[1:], command, option)
    assert (called.test if called else "") == test


def test_fields_of_the_api_are_all_known() -> None:
    replay = "tests/unit/api/test_cdc_cli_replay.py::test_api_answers_each_recorded_request_of_cdc_cli_as_ticdc_did"
    row = Row("", "", "fields", replay, "how")
    assert judge_fields(row, recorded_configs()).mark is Mark.DIFFERS
    assert judge_fields(row, [{"memory_quota": 5}, {"memory_quotas": 5}]).mark is Mark.UNKNOWN
    assert judge_fields(Row("", "", "fields", "", "how"), recorded_configs()).mark is Mark.SILENT
