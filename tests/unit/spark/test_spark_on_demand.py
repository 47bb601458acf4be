"""A sorter's Spark session: there when it is asked for, and once."""

import threading
import time
from typing import Any

import pytest

from sorters.log.failures import SparkStartError
from sorters.spark.session import SparkOnDemand


class Spark:
    """What a session is asked here."""

    def __init__(self) -> None:
        self.stops = 0
        self.ended = False
        self.sparkContext = self._jsc = self  # as py4j names them
        self.answers = True

    @property
    def uiWebUrl(self) -> str:  # noqa: N802 # Spark's name
        assert self.answers, "py4j raises where nobody answers"
        return "http://127.0.0.1:4040"

    def sc(self) -> "Spark":
        return self

    def isStopped(self) -> bool:  # noqa: N802 # Spark's name
        return self.ended

    def stop(self) -> None:
        self.stops += 1


def test_spark_asked_for_by_two_threads_starts_once() -> None:
    started: list[Spark] = []

    def start() -> Any:
        time.sleep(0.05)
        started.append(Spark())
        return started[-1]

    spark, got = SparkOnDemand(start), list[Any]()
    threads = [threading.Thread(target=lambda: got.append(spark.get())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [started[0]] * 2 and len(started) == 1
    spark.stop()
    assert started[0].stops == 1


def test_spark_that_is_being_started_is_not_gone() -> None:
    starting, go_on = threading.Event(), threading.Event()

    def start() -> Any:
        starting.set()
        assert go_on.wait(10)
        return Spark()

    spark = SparkOnDemand(start)
    thread = threading.Thread(target=spark.get)
    thread.start()
    assert starting.wait(10)
    assert not spark.is_gone(), "another start beside this one would take its gateway away"
    go_on.set()
    thread.join()
    assert not spark.is_gone()


def test_spark_whose_jvm_has_ended_is_asked_for_no_address() -> None:
    session = Spark()
    spark = SparkOnDemand(lambda: session)
    spark.get()
    session.answers = False
    assert spark.web_url == "http://127.0.0.1:4040"


def test_spark_that_nobody_needs_is_neither_started_nor_gone() -> None:
    spark = SparkOnDemand(lambda: pytest.fail("nobody asked"))
    assert not spark.is_gone()
    spark.stop()


def test_spark_that_does_not_start_says_so_and_is_gone() -> None:
    def refuse() -> Any:
        raise RuntimeError("no room on the cluster")

    spark = SparkOnDemand(refuse)
    with pytest.raises(SparkStartError, match="no room on the cluster"):
        spark.get()
    assert spark.is_gone()


def test_spark_whose_cluster_sends_it_away_is_gone() -> None:
    session = Spark()
    spark = SparkOnDemand(lambda: session)
    spark.get()
    assert not spark.is_gone()
    session.ended = True
    assert spark.is_gone()
