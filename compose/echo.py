"""How a command says something."""

import click

from compose.escapes import escaped_lines


def echo(text: object, *, err: bool = False) -> None:
    """Print a line, or several. Names of tables, texts of DDL and what servers say may hold terminal sequences, so
    control characters are printed as escapes; what is JSON stays JSON.
    """
    click.echo(escaped_lines(str(text)), err=err)
