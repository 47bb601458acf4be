"""Commands that pages show: found, taken apart as a shell would, and held against the real command line."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from compose.cli import cli
from tests.support.sources.repository import ROOT, text_of

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^    .*\n?)+", re.MULTILINE)
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_SHELL = frozenset({"", "sh", "bash", "shell", "console"})
_ASSIGNMENT = re.compile(r"([A-Z_]+)=\S*")
_TARGET = re.compile(r"^([a-z-]+):", re.MULTILINE)
ELLIPSIS = "…"


@dataclass(frozen=True, slots=True)
class Command:
    """``whole``: shown to be typed as it stands, so nothing that it needs may be missing."""

    words: tuple[str, ...]
    whole: bool

    def __str__(self) -> str:
        return " ".join(self.words)


def commands_of(page: Path) -> Iterator[Command]:
    """Yield the commands ``tidebus …`` and ``make …`` of a page: lines of its blocks, and spans within its text."""
    text = text_of(page)
    for language, block in _FENCED.findall(text):
        if language in _SHELL:
            yield from _lines(block)
    prose = _FENCED.sub("", text)
    for block in _INDENTED.findall(prose):
        yield from _lines(block)
    for span in _SPAN.findall(_INDENTED.sub("", prose)):
        yield from _command(" ".join(span.split()), whole=False)


def complaint(command: Command) -> str | None:
    """Return what is wrong with a command; None: nothing."""
    words = [word for word in command.words if not _ASSIGNMENT.fullmatch(word)]
    variables = [match[1] for word in command.words if (match := _ASSIGNMENT.fullmatch(word))]
    return _made(words[1:], variables) if words[0] == "make" else _parsed(words[1:], command.whole)


def _lines(block: str) -> Iterator[Command]:
    for line in block.replace("\\\n", " ").splitlines():
        yield from _command(line.strip().removeprefix("$ "), whole=True)


def _command(line: str, *, whole: bool) -> Iterator[Command]:
    if not re.match(r"(?:[A-Z_]+=\S* )*(?:tidebus|make) ", line):
        return
    words = shlex.split(line, comments=True)
    yield Command(tuple(words), whole and ELLIPSIS not in line)


def _made(words: list[str], variables: list[str]) -> str | None:
    makefile = (ROOT / "Makefile").read_text()
    unknown = [word for word in words if word not in _TARGET.findall(makefile)]
    unknown += [variable for variable in variables if f"$({variable})" not in makefile]
    return f"make knows no {', '.join(unknown)}" if unknown else None


def _parsed(words: list[str], whole: bool) -> str | None:
    command: click.Command = cli
    context = click.Context(cli, info_name="tidebus")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, subcommand, words = (
            command.resolve_command(context, words) if words[0] in command.commands else (None, None, words)
        )
        if subcommand is None:
            return None if words[0] == ELLIPSIS else f"{context.command_path} has no command {words[0]}"
        command, context = subcommand, click.Context(subcommand, info_name=name, parent=context)
    # An ellipsis after an option is its value; any other stands for what is left out.
    kept = [
        word for before, word in zip(["", *words], words, strict=False) if word != ELLIPSIS or before.startswith("-")
    ]
    if not whole:
        kept = list(_with_values(command, kept))
    try:
        given, left, _ = command.make_parser(context).parse_args(list(kept))
    except click.UsageError as error:
        return error.format_message()
    if left:
        return f"{context.command_path} does not take {left}"
    return _missing(command, context, given, whole=whole) or _no_choice(command, given)


def _with_values(command: click.Command, words: list[str]) -> Iterator[str]:
    """An option that is only named has no value."""
    valued = {name for param in command.params if not getattr(param, "is_flag", True) for name in param.opts}
    for word, after in zip(words, [*words[1:], "-"], strict=False):
        yield word
        if word in valued and after.startswith("-"):
            yield ELLIPSIS


def _missing(command: click.Command, context: click.Context, given: dict[str, object], *, whole: bool) -> str | None:
    if isinstance(command, click.Group) and whole:
        return f"{context.command_path} lacks a command"
    absent = [param for param in command.params if param.required and param.name not in given]
    return f"{context.command_path} lacks {absent[0].opts[-1]}" if absent and whole else None


def _no_choice(command: click.Command, given: dict[str, object]) -> str | None:
    for param in command.params:
        value = given.get(param.name or "")
        if isinstance(param.type, click.Choice) and isinstance(value, str) and value not in param.type.choices:
            return f"{param.opts[-1]} takes one of {list(param.type.choices)}, not {value}"
    return None
