"""How a command says something."""

from collections.abc import Sequence
from typing import Final

import click

from compose.escapes import escaped_lines

_LISTED_MAX: Final = 20


def listed(names: Sequence[str]) -> str:
    """Return names as a sentence has them: the first, and how many more there are."""
    more = len(names) - _LISTED_MAX
    return ", ".join(names[:_LISTED_MAX]) + (f" and {more} more" if more > 0 else "")


def echo(text: object, *, err: bool = False) -> None:
    """Print a line, or several. Names of tables, texts of DDL and what servers say may hold terminal sequences, so
    control characters are printed as escapes; what is JSON stays JSON.
    """
    click.echo(escaped_lines(str(text)), err=err)
