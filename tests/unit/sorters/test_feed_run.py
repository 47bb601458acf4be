"""A run of a changefeed that fails while it is stopping says so: no error goes unseen."""

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from schemas.errors import InvariantBrokenError
from sorters.run.feed_run import FeedRun


def failing(error: Exception, *, stopping: bool) -> FeedRun:
    run = FeedRun.__new__(FeedRun)
    parts: Any = run
    parts._failure, parts.failures_at_end, parts._stopping = None, 0, threading.Event()

    def resumed(beginning: object) -> None:
        if stopping:
            parts._stopping.set()
        raise error

    parts._resumed = resumed
    parts._run(None)
    return run


def test_error_while_stopping_is_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    run = failing(RuntimeError("broker gone"), stopping=True)
    assert (run.failure(), run.failures_at_end) == (None, 1)
    assert [(record.levelname, vars(record)["code"]) for record in caplog.records] == [("WARNING", "sorter.spark_job")]
    assert "broker gone" in vars(caplog.records[0])["error"]
    caplog.clear()
    failing(InvariantBrokenError("cannot be"), stopping=True)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_error_of_a_run_that_goes_on_is_its_failure() -> None:
    run = failing(RuntimeError("broker gone"), stopping=False)
    failure = run.failure()
    assert failure is not None
    assert (failure.code, run.failures_at_end) == ("sorter.spark_job", 0)


def test_closed_run_gives_up_a_cut_that_a_query_runs_on_where_its_jvm_has_died() -> None:
    # Its thread is the query's: nobody joins it, and Spark's next session would write what it begins now.
    said: list[str] = []
    run = FeedRun.__new__(FeedRun)
    parts: Any = run
    parts._stopping, parts._given_up, parts._thread = threading.Event(), threading.Event(), None
    parts._job = SimpleNamespace(give_up=lambda: said.append("given up"))
    parts._parts = SimpleNamespace(close=lambda: said.append("closed"))
    run.close()
    assert said == ["given up", "closed"]
