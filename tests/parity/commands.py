"""Rows of `cdc`'s verbs and flags: our commands as click has them."""

import click

from compose.cli import cli
from tests.parity.evidence import shown
from tests.parity.rows import Mark, Row, Verdict


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
    return shown(row, option or words[-1])


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
