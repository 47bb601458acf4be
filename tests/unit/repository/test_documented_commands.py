"""Every command that README and docs show parses: its options exist, and what it needs is given."""

from pathlib import Path

import pytest

from tests.support.sources.documented_commands import Command, commands_of, complaint
from tests.support.sources.repository import ROOT, pages

PAGES = [page for page in pages() if ROOT / "tests" not in page.parents]


def _complaint(text: str, *, whole: bool = True) -> str | None:
    return complaint(Command(tuple(text.split()), whole))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_parse(page: Path) -> None:
    assert {str(command): complained for command in commands_of(page) if (complained := complaint(command))} == {}


def test_readme_shows_both_make_commands_and_a_capture() -> None:
    shown = [str(command) for command in commands_of(ROOT / "README.md")]

    assert "make run" in shown
    assert "make test" in shown
    assert any(command.startswith("tidebus capture --pd ") for command in shown)


@pytest.mark.parametrize(
    ("text", "complained"),
    [
        ("tidebus captur", "has no command captur"),
        ("tidebus cli changefeed moove", "has no command moove"),
        ("tidebus top --nothing", "--nothing"),
        ("tidebus decode --kafka", "--kafka"),
        ("tidebus decode --kafka HOST:PORT", "lacks --topic"),
        ("tidebus cli", "lacks a command"),
        ("tidebus top and more", "does not take"),
        ("tidebus simulate --of nothing", "takes one of"),
        ("make runn", "knows no runn"),
        ("make run NOTHING=1", "knows no NOTHING"),
    ],
)
def test_a_command_that_is_wrong_is_found(text: str, complained: str) -> None:
    assert complained in (_complaint(text) or "")


@pytest.mark.parametrize("text", ["tidebus decode", "tidebus cli", "tidebus decode --kafka --topic", "tidebus …"])
def test_a_command_that_is_only_named_may_lack_what_it_needs(text: str) -> None:
    assert _complaint(text, whole=False) is None


def test_commands_are_found_in_blocks_lines_and_spans(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Run `tidebus\ntop` or `ls`.\n\n"
        '    FOR=90s make run  # a while\n    tidebus decode --kafka K \\\n      --topic "a b"\n\n'
        "```sh\ntidebus doctor …\n```\n\n```python\nmake = 1\n```\n"
    )

    assert list(commands_of(page)) == [
        Command(("tidebus", "doctor", "…"), whole=False),
        Command(("FOR=90s", "make", "run"), whole=True),
        Command(("tidebus", "decode", "--kafka", "K", "--topic", "a b"), whole=True),
        Command(("tidebus", "top"), whole=False),
    ]
