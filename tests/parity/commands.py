"""Rows of `cdc`'s verbs and flags: our commands as click has them."""

from functools import cache
from typing import Final

import click

from compose.cli import cli
from tests.parity.evidence import shown
from tests.parity.rows import Mark, Row, Verdict
from tests.support.recorded.recorded_ticdc import cli_calls
from tests.unit.api.test_cdc_cli_calls import reason_for
from tests.unit.api.test_cdc_cli_flags import CALLS

RECORDED: Final = "tests/unit/api/test_cdc_cli_calls.py"
FLAGS: Final = "tests/unit/api/test_cdc_cli_flags.py"


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
        called = calling_test(words[1:], command, option)
        if called:
            return Verdict(Mark.DIFFERS, f"{row.how} (`{called}`)") if row.how else Verdict(Mark.SAME, f"`{called}`")
    return shown(row, option or words[-1])


def calling_test(words: list[str], command: click.Command, option: str) -> str:
    """Return the test that calls a verb, with an option by any of its names; '': none does."""
    spelt = {
        name
        for parameter in command.params
        if option in (*parameter.opts, *parameter.secondary_opts)
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    for test, calls in _calls().items():
        for call in calls:
            if list(call[: len(words)]) == words and (
                not option or any(argument.partition("=")[0] in spelt for argument in call[len(words) :])
            ):
                return test
    return ""


@cache
def _calls() -> dict[str, tuple[tuple[str, ...], ...]]:
    """Return by test what it calls: the recorded calls that end and print here as there, then those of our own."""
    recorded = tuple(
        tuple(call["args"])
        for name in ("classic", "new")
        for call in cli_calls(name)
        if not reason_for(name, call["args"]) and call["exit"] in (0, 124)
    )
    return {RECORDED: recorded, FLAGS: tuple(tuple(call.split()) for call in CALLS)}


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
