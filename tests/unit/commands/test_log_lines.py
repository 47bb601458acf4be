"""The newest lines of a capture's log: which are kept, how many, and what is hidden in them."""

import logging
from collections.abc import Iterator

import pytest

from compose.log_lines import LINES_MAX, RecentLines, keep_recent_lines
from schemas.errors import CorruptDataError
from schemas.redaction import Redaction, set_redaction

NAME = "Alice"
"""A user's."""


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("sorters.of_lines")
    yield logger
    logger.handlers.clear()


@pytest.fixture
def kept(logger: logging.Logger) -> RecentLines:
    lines = RecentLines()
    logger.addHandler(lines)
    logger.setLevel(logging.DEBUG)
    return lines


def test_warnings_and_errors_are_kept_oldest_first_and_the_newest_five_hundred(
    kept: RecentLines, logger: logging.Logger
) -> None:
    logger.info("no")
    for number in range(LINES_MAX + 3):
        logger.warning("line", extra={"offset": number})
    lines = kept.lines()
    assert [line["offset"] for line in lines] == list(range(3, LINES_MAX + 3))
    assert {line["message"] for line in lines} == {"line"}
    assert {line["level"] for line in lines} == {"warning"}
    assert lines[0]["logger"] == "sorters.of_lines"


def test_lines_are_masked_and_long_texts_cut(kept: RecentLines, logger: logging.Logger) -> None:
    logger.error("fails", extra={"uri": "mysql://u:geheim@h:1/", "what": "x" * 9_000, "parts": [1] * 9_000})
    (line,) = kept.lines()
    assert "geheim" not in str(line)
    assert len(line["what"]) < 4_100
    assert len(line["parts"]) < 4_100


def test_lines_are_redacted_as_the_log_was_when_they_were_logged(kept: RecentLines, logger: logging.Logger) -> None:
    set_redaction(Redaction.ON)
    try:
        try:
            raise CorruptDataError("row does not decode", table="d.t", reason=NAME)
        except CorruptDataError as error:
            logger.warning("run fails", exc_info=error, extra={"table": "d.t", "key": NAME, "changefeed": "cf"})
    finally:
        set_redaction(Redaction.OFF)
    (line,) = kept.lines()
    assert NAME not in str(line)
    assert (line["table"], line["key"], line["changefeed"]) == ("d.t", "?", "cf")
    assert "row does not decode" in line["stack"]


def test_a_process_keeps_its_lines_once() -> None:
    root = logging.getLogger()
    before = list(root.handlers)
    try:
        first = keep_recent_lines()
        assert keep_recent_lines() is first
        assert sum(isinstance(handler, RecentLines) for handler in root.handlers) == 1
    finally:
        root.handlers[:] = before
