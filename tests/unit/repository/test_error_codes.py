"""Error codes are public: they are listed, each says what it means, and none means two things."""

import re
import sys
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from compose.cli import cli
from compose.operator.error_codes import ErrorCode, as_page, catalogue
from tests.support.sources.repository import ROOT, pages, text_of

PAGE = ROOT / "docs" / "error-codes.md"
CITING = [page for page in pages() if page.is_relative_to(ROOT / "docs")]
NO_CODES = frozenset(
    {
        *("client.id", "client.rack"),  # Kafka's
        *("schema.table", "sink.advance_timeout", "sink.file_index_width", "sink.protocol", "sink.terminator"),
    }
)
"""What pages call so beside codes: settings, and a table's name."""


@pytest.fixture(scope="module")
def codes() -> list[ErrorCode]:
    return catalogue()


def test_page_of_error_codes_is_what_the_code_says(codes: list[ErrorCode]) -> None:
    assert PAGE.read_text() == as_page(codes), (
        "make it anew: python -m compose.operator.error_codes > docs/error-codes.md"
    )


def test_each_code_is_one_errors_and_says_what_it_means(codes: list[ErrorCode]) -> None:
    assert [code for code, count in Counter(entry.code for entry in codes).items() if count > 1] == []
    assert [entry.code for entry in codes if len(entry.meaning) < 10] == []


def test_codes_that_no_exception_has_are_told_too(codes: list[ErrorCode]) -> None:
    assert {"sorter.died", "changefeed.table_held", "changefeed.upstream_stands"} <= {entry.code for entry in codes}


@pytest.mark.parametrize("page", CITING, ids=lambda page: str(page.relative_to(ROOT)))
def test_error_codes_that_a_page_names_are_codes(page: Path, codes: list[ErrorCode]) -> None:
    known = {entry.code for entry in codes}
    families = "|".join(sorted({code.partition(".")[0] for code in known}))
    named = set(re.findall(rf"`((?:{families})\.[a-z_]+)`", text_of(page)))
    assert sorted(named - known - NO_CODES) == []


def test_errors_command_explains_one_code_or_a_family() -> None:
    said = CliRunner().invoke(cli, ["errors", "[sorter.topic_missing]"]).output
    assert said.startswith("sorter.topic_missing (needs you): The topic is not there")
    assert said.count("\n") == 1
    assert CliRunner().invoke(cli, ["errors", "sorter."]).output.count("\n") > 10


def test_errors_command_when_there_is_no_such_code_says_so() -> None:
    ran = CliRunner().invoke(cli, ["errors", "nothing.of_the_kind"])
    assert ran.exit_code != 0
    assert "no such error code" in str(ran.exception)


def test_codes_are_told_where_the_client_of_a_destination_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, codes: list[ErrorCode]
) -> None:
    monkeypatch.delitem(sys.modules, "edges.storages.azure", raising=False)
    monkeypatch.setitem(sys.modules, "azure.core.credentials", None)  # as where it is not installed
    assert catalogue() == codes
