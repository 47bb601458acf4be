"""A service's one Spark session: how often one that does not start is tried, and one that lives is not."""

from types import SimpleNamespace
from typing import Any

import pytest

from sorters.log.failures import SparkStartError
from sorters.service import shared_spark
from sorters.service.shared_spark import AGAIN_MAX_S, SharedSpark


class Starts:
    """Stands for Spark: it starts once it is told that it can."""

    def __init__(self) -> None:
        self.at_s: list[float] = []
        self.now_s, self.can = 100.0, False

    def start(self) -> Any:
        self.at_s.append(self.now_s)
        if not self.can:
            raise SparkStartError("no room")
        stopped = SimpleNamespace(isStopped=lambda: False)
        context = SimpleNamespace(uiWebUrl="http://127.0.0.1:4040", _jsc=SimpleNamespace(sc=lambda: stopped))
        return SimpleNamespace(sparkContext=context)

    def run(self, spark: SharedSpark, seconds: int) -> None:
        """Ask for a warm session each half second, as the service's loop does."""
        for _ in range(2 * seconds):
            spark.warm()
            if spark._warming is not None:
                spark._warming.join(10)
            self.now_s += 0.5


def test_spark_that_does_not_start_is_tried_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = Starts()
    monkeypatch.setattr(shared_spark, "time", SimpleNamespace(monotonic=lambda: starts.now_s))
    monkeypatch.setattr(shared_spark, "run_first_job", lambda spark: None)
    spark = SharedSpark(starts.start)
    starts.run(spark, 300)
    pauses = [later - earlier for earlier, later in zip(starts.at_s, starts.at_s[1:], strict=False)]
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60]
    starts.can = True
    starts.run(spark, int(2 * AGAIN_MAX_S))
    assert spark.is_warm() and spark.web_url == "http://127.0.0.1:4040"
    assert len(starts.at_s) == len(pauses) + 2, "it lives"
