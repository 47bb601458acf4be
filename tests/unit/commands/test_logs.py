"""Lines of the bus's logs, as text and as JSON."""

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from compose.logs import FILE_BYTES_MAX, JsonFormatter, LineFormatter, NotAgain, start_logging
from schemas.errors import ConfigError


def record(message: str, **ids: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "a.b", "levelname": "INFO", "levelno": logging.INFO, "msg": message, **ids})
    made.created, made.msecs = 1_700_000_000.0, 7.0
    return made


@pytest.fixture
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, env = list(root.handlers), root.level, dict(os.environ)
    on_signal = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, on_signal)
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    os.environ.clear()
    os.environ.update(env)


def test_line_holds_time_level_logger_message_and_ids() -> None:
    line = LineFormatter().format(record("changefeed runs", changefeed="orders", ts=5))
    assert line == "2023-11-14T22:13:20.007Z INFO    a.b changefeed runs changefeed=orders ts=5"


def test_json_line_is_one_object_in_which_ids_hide_nothing() -> None:
    line = JsonFormatter().format(record("two\nlines", level="mine", path=Path("a"), tables=[1, 2]))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.007Z",
        "level": "info",
        "level_": "mine",
        "logger": "a.b",
        "message": "two\nlines",
        "path": "a",
        "tables": [1, 2],
    }


def test_json_line_of_an_error_holds_the_stack() -> None:
    try:
        raise ValueError("broken")
    except ValueError as error:
        made = record("failed")
        made.exc_info = (ValueError, error, error.__traceback__)
    assert "ValueError: broken" in json.loads(JsonFormatter().format(made))["stack"]


FORGED = "t\n2026-01-01T00:00:00.000Z ERROR   owner all is lost\x1b[2J\r\u2028\x85\u202e"


def test_line_of_a_name_with_line_breaks_is_one_line_and_drives_no_terminal() -> None:
    line = LineFormatter().format(record(f"no table {FORGED}", table=FORGED))
    assert line.isprintable()
    assert line.count(r"t\n2026-01-01T00:00:00.000Z ERROR   owner all is lost\u001b[2J\r\u2028\u0085\u202e") == 2


def test_stack_of_an_error_with_line_breaks_begins_no_line_of_its_own() -> None:
    try:
        raise ValueError(FORGED)
    except ValueError as error:
        made = record("failed")
        made.exc_info = (ValueError, error, error.__traceback__)
    first, *stack = LineFormatter().format(made).splitlines()
    assert first.endswith("failed")
    assert all(line.startswith("    | ") and line.isprintable() for line in stack)
    assert any("owner all is lost" in line for line in stack)


def test_json_line_of_any_name_is_one_printable_line_and_decodes_to_it() -> None:
    line = JsonFormatter().format(record("no table", table=FORGED))
    assert line.isprintable()
    assert json.loads(line)["table"] == FORGED


@pytest.mark.usefixtures("restored")
def test_logging_to_a_file_writes_from_its_level_on_and_tells_children(tmp_path: Path) -> None:
    file = tmp_path / "logs" / "capture.log"
    start_logging(level="warn", form="json", file=file)
    logging.getLogger("x").info("unseen")
    logging.getLogger("x").warning("seen", extra={"capture": "c"})
    (line,) = file.read_text().splitlines()
    assert (json.loads(line)["message"], json.loads(line)["capture"]) == ("seen", "c")
    assert (os.environ["TIDEBUS_LOG_FORMAT"], os.environ["TIDEBUS_LOG_LEVEL"]) == ("json", "warn")
    assert FILE_BYTES_MAX == 300 << 20
    with pytest.raises(ConfigError, match="log file cannot be written"):
        start_logging(file=tmp_path)


@pytest.mark.usefixtures("restored")
def test_process_that_is_asked_by_a_signal_logs_where_each_thread_stands(tmp_path: Path) -> None:
    assert threading.current_thread() is threading.main_thread(), "no other may ask for signals"
    file, ended = tmp_path / "sorters.log", threading.Event()
    start_logging(level="warn", form="json", file=file)

    def wait_in_vain() -> None:
        ended.wait()

    thread = threading.Thread(target=wait_in_vain, name="feed default/orders")
    thread.start()
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        deadline = time.monotonic() + 60
        while not all(name in file.read_text() for name in ("MainThread", thread.name)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        ended.set()
        thread.join()
    said = {line["thread_name"]: line["stack"] for line in map(json.loads, file.read_text().splitlines())}
    assert "test_logs.py:wait_in_vain:" in said["feed default/orders"]
    assert "test_logs.py:test_process_that_is_asked_by_a_signal" in said["MainThread"]
    assert "asked-stacks" not in said


def test_line_of_a_server_that_is_away_is_logged_once_a_while() -> None:
    quiet = NotAgain(quiet_s=60)
    seen = [quiet.filter(record(text)) for text in ("away: a", "away: a", "away: b", "away: a", "away: b")]
    assert seen == [True, False, True, False, False]
    loud = NotAgain(quiet_s=0)
    assert loud.filter(record("away")) and loud.filter(record("away"))


@pytest.mark.usefixtures("restored")
def test_log_file_is_its_owners_alone_and_keeps_another_mode_that_was_given(tmp_path: Path) -> None:
    file = tmp_path / "capture.log"
    start_logging(file=file, file_bytes_max=1, files_kept=2)
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o640)
    for _ in range(3):
        logging.getLogger("x").warning("turned over")
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("capture.log", "capture.log.1", "capture.log.2")] == [
        0o640
    ] * 3
