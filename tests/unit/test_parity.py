"""docs/parity.md is what our code answers for each of TiCDC's things, and none of them is passed over in silence."""

from collections import Counter

import pytest

from tests.parity.evidence import field_of, is_read, names_it
from tests.parity.page import PAGE, SECTIONS, judged, page_text
from tests.parity.rows import FAULTS, Mark, Row, Verdict, read_rows
from tests.parity.settings import judge_key, judge_parameter

ROWS = {"config": 202, "uri": 139, "cli": 111, "api": 85, "content": 95, "metrics": 344, "server": 105, "features": 40}
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
        (judge_key, Row("bdr-mode", "", "mysql | bdr-mode = true", "", ""), Mark.REFUSED),
        (judge_key, Row("bdr-mode", "", "canal-json | bdr-mode = true", "tests/unit/no_such_test", ""), Mark.SILENT),
        (judge_parameter, Row("x", "", "mysql://root@h/?no-such=1 | no-such", "", ""), Mark.UNKNOWN),
        (judge_parameter, Row("x", "", "", "", ""), Mark.SILENT),
        (judge_parameter, Row("x", "", "", "", "a reason"), Mark.NOT_HERE),
    ],
)
def test_a_fault_is_seen(judge: object, row: Row, mark: Mark) -> None:
    assert callable(judge)
    verdict = judge(row)
    assert verdict.mark is mark


def test_evidence_needs_a_reader_and_a_test_that_names_it() -> None:
    assert field_of("sink.dispatchers[].target-schema") == "target_schema" and field_of("sink.no-such") is None
    assert is_read("sink.cloud-storage-config.output-column-id") and is_read("synced-status.checkpoint-interval")
    assert is_read("filter.event-filters[].ignore-update-new-value-expr")
    assert not is_read("mounter.worker-num")
    assert names_it("tests/unit/test_parity.py", "worker-num")
    assert not names_it("tests/unit/test_parity.py:no" + "where", "worker-num") and not names_it("", "")
