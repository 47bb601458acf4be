"""``tidebus --help`` is the first page that anybody reads: every command stands there once, on one line."""

from click.testing import CliRunner

from compose.cli import cli


def test_help_lists_every_command_once_on_one_line_of_80_columns() -> None:
    lines = CliRunner().invoke(cli, ["--help"], terminal_width=80).output.splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("  ") and line.split()[0] in cli.commands]
    assert sorted(listed) == sorted(cli.commands)
    after = lines.index("On this machine:")
    assert [line for line in lines[after:] if line.startswith("   ")] == []
