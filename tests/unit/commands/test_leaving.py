"""A command that is done has run its exit handlers and said all that it had to say, and takes no interpreter apart."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from compose.cli import STATUS_FAILED

ENDS = """
import atexit, sys, threading

class TakenApart:
    def __del__(self, write=__import__("os").write):
        write(2, b"taken apart")

import builtins
builtins.kept = TakenApart()
from compose import cli

def run_cli(arguments):
    atexit.register(lambda: print("handled"))
    threading.Thread(target=lambda: print("waited for")).start()
    {end}

cli.run_cli = run_cli
cli.main()
"""


def ended(end: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", ENDS.format(end=end)], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("status", [0, 1, 130])
def test_a_command_that_is_done_leaves_by_its_handlers_alone(status: int) -> None:
    ran = ended(f"return {status}")
    assert (ran.returncode, ran.stdout.split("\n"), ran.stderr) == (status, ["waited for", "handled", ""], "")


@pytest.mark.parametrize("closed", ["sys.stdout = None", "sys.stderr.close()"])
def test_a_closed_stream_does_not_matter(closed: str) -> None:
    ran = ended(f"{closed}; return 3")
    assert (ran.returncode, ran.stderr) == (3, "")


def test_an_error_that_nobody_caught_ends_python_as_always() -> None:
    ran = ended("raise LookupError('nobody')")
    assert ran.returncode == STATUS_FAILED
    assert "LookupError: nobody" in ran.stderr
    assert "taken apart" in ran.stderr


def test_output_that_gets_nowhere_is_no_success() -> None:
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-c", ENDS.format(end="return 0")],
            stdout=full,
            stderr=subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
            text=True,
            timeout=120,
            check=False,
        )
    assert ran.returncode != 0
    assert "No space left" in ran.stderr
