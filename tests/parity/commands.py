"""Rows of `cdc`'s verbs and flags: our commands as click has them."""

from dataclasses import dataclass
from functools import cache
from typing import Final

import click

from compose.cli import cli
from tests.parity.evidence import names_it, shown
from tests.parity.rows import Mark, Row, Verdict
from tests.support.recorded.recorded_ticdc import cli_calls
from tests.unit.api.test_cdc_cli_calls import reason_for
from tests.unit.api.test_cdc_cli_flags import CALLS

RECORDED: Final = "tests/unit/api/test_cdc_cli_calls.py::test_each_recorded_call_of_cdc_cli_ends_and_prints_the_same"
FLAGS: Final = "tests/unit/api/test_cdc_cli_flags.py::test_flag_of_cdc_cli_does_what_it_is_for"


@dataclass(frozen=True, slots=True)
class Called:
    """A call of our command, and the test that makes it."""

    test: str
    """``path::function``."""
    case: str
    """One of its cases: whose recording, or the arguments."""

    def __str__(self) -> str:
        path, _, function = self.test.partition("::")
        return f"`{function}[{self.case}]` in `{path}`"


def judge_command(row: Row) -> Verdict:
    """Return what becomes of a verb or flag. The probe: our command, and the option behind it; '': there is none."""
    if not row.probe:
        return Verdict(Mark.NOT_HERE, row.how) if row.how else Verdict(Mark.SILENT, "there is nothing, and no reason")
    *words, last = row.probe.split()
    option = last if last.startswith("-") else ""
    words += [] if option else [last]
    command = command_of(words)
    if command is None:
        return Verdict(Mark.UNKNOWN, f"`tidebus {' '.join(words)}` is no command")
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    if option and option not in options:
        return Verdict(Mark.UNKNOWN, f"`tidebus {' '.join(words)}` has no {option}")
    if row.how.startswith("note: "):
        return Verdict(Mark.NO_EFFECT, row.how)
    if words[:1] == ["cli"] and not row.test:
        called = call_of(words[1:], command, option)
        if called is not None:
            return Verdict(Mark.DIFFERS, f"{row.how} ({called})") if row.how else Verdict(Mark.SAME, str(called))
    return shown(row, option or words[-1])


def call_of(words: list[str], command: click.Command, option: str) -> Called | None:
    """Return a tested call of a verb, with an option by any of its names; None: there is none."""
    spelt = {
        name
        for parameter in command.params
        if option in (*parameter.opts, *parameter.secondary_opts)
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    for arguments, called in _calls():
        if list(arguments[: len(words)]) == words and (
            not option or any(argument.partition("=")[0] in spelt for argument in arguments[len(words) :])
        ):
            return called
    return None


@cache
def _calls() -> tuple[tuple[tuple[str, ...], Called], ...]:
    """Return arguments that tests call: the recorded ones that end and print here as there, then those of our own."""
    assert names_it(RECORDED, "cli_calls") and names_it(FLAGS, "CALLS"), "the tests are called otherwise"
    recorded = [
        (tuple(call["args"]), Called(RECORDED, name))
        for name in ("classic", "new")
        for call in cli_calls(name)
        if not reason_for(name, call["args"]) and call["exit"] in (0, 124)
    ]
    return (*recorded, *((tuple(call.split()), Called(FLAGS, call)) for call in CALLS))


def command_of(words: list[str]) -> click.Command | None:
    """Return a command by its words below ``tidebus``; None: there is none."""
    command: click.Command = cli
    for word in words:
        if not isinstance(command, click.Group):
            return None
        below = command.get_command(click.Context(command), word)
        if below is None:
            return None
        command = below
    return command
