"""The commands of ``tidebus`` by what they are for, as ``tidebus --help`` lists them."""

from dataclasses import dataclass

import click


@dataclass(frozen=True, slots=True)
class Section:
    """Commands that belong together, each with a few words; its own ``--help`` has the sentence."""

    title: str
    commands: tuple[tuple[click.Command, str], ...]


class SectionedGroup(click.Group):
    """A group whose help shows its commands in sections, in the order given."""

    sections: tuple[Section, ...] = ()

    def take(self, *sections: Section) -> None:
        """Add all commands of ``sections``."""
        self.sections += sections
        for section in sections:
            for command, _ in section.commands:
                self.add_command(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click; called for ``--help``."""
        for section in self.sections:
            with formatter.section(section.title):
                formatter.write_dl([(command.name or "", words) for command, words in section.commands])
