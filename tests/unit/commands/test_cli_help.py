"""``tidebus --help`` is the first page that anybody reads: every command stands there once, on one line."""

import pytest
from click.testing import CliRunner

from compose.cli import cli


def test_help_lists_every_command_once_on_one_line_of_80_columns() -> None:
    lines = CliRunner().invoke(cli, ["--help"], terminal_width=80).output.splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("  ") and line.split()[0] in cli.commands]
    assert sorted(listed) == sorted(cli.commands)
    after = lines.index("On this machine:")
    assert [line for line in lines[after:] if line.startswith("   ")] == []


@pytest.mark.parametrize("command", ["capture", "sorter", "processor", "decode"])
def test_address_that_is_needed_and_not_given_is_asked_for(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KAFKA", "ZOOKEEPER", "SCHEMA_REGISTRY", "PD"):
        monkeypatch.delenv(f"TIDEBUS_{name}", raising=False)
    needed = [param.opts[-1] for param in cli.commands[command].params if param.required]
    for missing in needed:
        arguments = [word for option in needed if option != missing for word in (option, "127.0.0.1:1")]
        ran = CliRunner().invoke(cli, [command, *arguments])
        assert ran.exit_code == 2
        assert f"{missing}'" in ran.output.partition("Missing option")[2]
