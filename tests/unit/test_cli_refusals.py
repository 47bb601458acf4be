"""What the machine refuses ends a command with one coded line, and never with a traceback."""

import errno
import os
from pathlib import Path

import pytest

from compose.cli import refusal, run_cli


def test_command_whose_folder_lies_below_a_file_says_which(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "data"
    assert run_cli(["run", "--data-dir", str(folder)]) == 1
    shown = capsys.readouterr().err.splitlines()[-1]
    assert shown.startswith("error: [bus.machine] the machine refuses: Not a directory") and str(folder) in shown


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE])
def test_full_machine_is_no_bug(number: int) -> None:
    refused = refusal(OSError(number, os.strerror(number)))
    assert refused is not None and os.strerror(number) in refused.message


def test_error_of_the_system_that_is_no_matter_of_files_keeps_its_traceback() -> None:
    assert refusal(ConnectionResetError(errno.ECONNRESET, "reset")) is None


@pytest.mark.parametrize(
    "flags", [["--sorter-master", "locl[2]"], ["--sorter-master", "spark://host"], ["--sorter-conf", "spark.cores.max"]]
)
def test_capture_with_a_sorter_setting_that_spark_would_choke_on_is_refused_at_once(
    flags: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("compose.capture.process.run_capture", lambda _: pytest.fail("it was started"))
    given = ["--pd", "p:1", "--kafka", "k:1", "--zookeeper", "z:1", "--schema-registry", "http://r"]
    assert run_cli(["capture", *given, *flags]) == 2
    assert flags[1] in capsys.readouterr().err
