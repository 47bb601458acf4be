"""An exception that has no code is a stop with one: no sorter tries it for ever, no command shows a traceback."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from compose.cli import cli, run_cli
from schemas.errors import Action, BusError, UnexpectedError
from sorters.log.failures import SparkJobError, WorkerError, bus_error, worker_error
from sorters.spark.worker.work import TaskWork

NONCE = "0123456789abcdef" * 2


def raised(error: Exception, module: str = __name__) -> Exception:
    """Return an exception as code of a module has raised it."""
    names: dict[str, object] = {"__name__": module, "error": error}
    exec("def fail():\n    raise error", names)
    fail = names["fail"]
    assert callable(fail)
    try:
        fail()
    except Exception as caught:
        return caught
    raise AssertionError


def number(number: int, frames: Iterator[bytes]) -> Iterator[bytes]:
    yield str(int("nextval(`d`.`sq`)")).encode()


@pytest.mark.parametrize(
    "error", [ValueError("no int"), KeyError("t"), TypeError("x"), AttributeError("y"), ZeroDivisionError("z")]
)
def test_what_our_code_stumbles_over_is_no_matter_of_time(error: Exception) -> None:
    caught = raised(error)
    wrapped = bus_error(caught)
    assert isinstance(wrapped, UnexpectedError)
    assert (wrapped.code, wrapped.action) == ("bus.unexpected", Action.CRASH)
    assert wrapped.fields["kind"] == type(error).__name__
    assert wrapped.fields["reason"] == str(error)
    assert wrapped.__cause__ is caught


@pytest.mark.parametrize("module", ["pyspark.sql.session", "py4j.java_gateway"])
def test_what_sparks_python_stumbles_over_is_tried_again(module: str) -> None:
    wrapped = bus_error(raised(AttributeError("'NoneType' object has no attribute '_jvm'"), module))
    assert isinstance(wrapped, SparkJobError)
    assert wrapped.action is Action.RETRY


@pytest.mark.parametrize("error", [ConnectionResetError("gone"), MemoryError(), RuntimeError("Consumer closed")])
def test_what_the_world_refuses_is_tried_again(error: Exception) -> None:
    assert bus_error(raised(error)).action is Action.RETRY


def test_a_workers_exception_comes_to_the_driver_with_its_code_and_line() -> None:
    with pytest.raises(WorkerError) as caught:
        list(TaskWork(number, NONCE)(0, iter(())))
    wrapped = worker_error(RuntimeError(f"org.apache.spark.SparkException: {caught.value}"), NONCE)
    assert isinstance(wrapped, UnexpectedError)
    assert wrapped.action is not Action.RETRY
    assert wrapped.fields["kind"] == "ValueError"
    assert "commands/test_unexpected_errors.py:" in str(wrapped.fields["at"])


@pytest.mark.parametrize("error", [KeyError("x"), OSError("no file"), RuntimeError("y")])
def test_a_command_says_it_in_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    def fails() -> None:
        raise error

    monkeypatch.setitem(cli.commands, "fails", fails)
    assert run_cli(["fails"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: [bus.unexpected]")
    assert said.count("\n") == 1
    assert f"kind={type(error).__name__}" in said
    assert "test_unexpected_errors.py:" in said


def test_an_error_of_ours_stays_as_it_is() -> None:
    error = BusError("x")
    assert bus_error(error) is error


def test_a_command_that_crashes_leaves_the_stacks_of_its_threads_on_standard_error() -> None:
    program = """
import os, signal, threading, compose.cli

def a_thread_that_waits():
    waits.set()
    threading.Event().wait()

def crash(arguments):
    threading.Thread(target=a_thread_that_waits, daemon=True).start()
    waits.wait()
    os.kill(os.getpid(), signal.SIGSEGV)

waits = threading.Event()
compose.cli.run_cli = crash
compose.cli.main()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == -signal.SIGSEGV
    assert ended.stderr.startswith("Fatal Python error: Segmentation fault")
    assert "in crash" in ended.stderr
    assert "in a_thread_that_waits" in ended.stderr


def test_letters_that_the_output_cannot_show_come_as_escapes() -> None:
    program = (
        "import sys, compose.cli; compose.cli.run_cli = lambda _: print('d1.größe \\u2026') or 0; compose.cli.main()"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout == "d1.gr\\xf6\\xdfe \\u2026\n"
