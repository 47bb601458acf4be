"""What upstream wrote drives no terminal of an operator, and nobody else on the machine reads logs that quote it."""

import ast
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from compose.cli import cli, run_cli
from compose.echo import echo
from compose.escapes import escaped_lines
from compose.stack.child_logs import turn_over
from compose.stack.children import Nursery
from schemas.errors import BusError
from tests.support.processes.bus import wait_until
from tests.support.sources.repository import ROOT

NAME = "t\x1b]52;c;cm0gLXJm\x07\x9b2J\u202e\x7f\r"
"""Writes the clipboard, clears the screen, turns the direction of writing."""


def test_printed_text_holds_no_control_character_but_tabs_and_line_breaks(capsys: pytest.CaptureFixture[str]) -> None:
    echo(f"note: {NAME}\tx\ny")
    said = capsys.readouterr().out
    assert said.replace("\t", "").replace("\n", "").isprintable()
    assert said.endswith("\tx\ny\n")


def test_json_of_any_name_is_printable_and_decodes_to_it() -> None:
    text = escaped_lines(json.dumps({"table": NAME}, ensure_ascii=False, indent=2))
    assert text.replace("\n", "").isprintable()
    assert json.loads(text) == {"table": NAME}


def test_error_of_a_command_drives_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command()
    def refuse() -> None:
        raise BusError(f"no table {NAME}", table=NAME)

    monkeypatch.setitem(cli.commands, "refuse", refuse)
    assert run_cli(["refuse"]) == 1
    assert capsys.readouterr().err.rstrip("\n").isprintable()


def test_no_command_prints_past_the_escapes() -> None:
    for file in sorted((ROOT / "compose" / "cli").glob("**/*.py")):
        calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Attribute)]
        printed = [node for node in calls if ast.unparse(node) in ("click.echo", "click.secho", "sys.stdout.write")]
        assert len(printed) <= (file.name == "top_commands.py"), file  # a script for a shell


def mode(file: Path) -> int:
    return file.stat().st_mode & 0o777


@pytest.fixture
def _open_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_open_umask")
def test_log_of_a_child_is_its_owners_alone_also_once_it_is_turned_over(tmp_path: Path) -> None:
    with Nursery() as nursery:
        child = nursery.start("child", [sys.executable, "-c", "print('x' * 10)"], log=tmp_path / "child.log")
        wait_until(lambda: not child.is_running(), 30, "end of the child")
    log = tmp_path / "child.log"
    assert mode(log) == 0o600
    assert turn_over(log, 4)
    assert mode(tmp_path / "child.log.1") == 0o600
