"""A cut by Spark that is given up just as the JVM dies: whoever gives it up, a service's loop perhaps, goes on."""

import threading
from types import SimpleNamespace
from typing import Any, Never, cast

import pytest
from py4j.protocol import Py4JNetworkError

from sorters.log.failures import SparkJobError
from sorters.spark.cut import SparkCut


def unanswered(_tag: str) -> Never:
    raise Py4JNetworkError("Answer from Java side is empty")


def test_cut_given_up_while_the_jvm_dies_is_given_up_and_raises_nothing() -> None:
    given_up: list[threading.Event] = []
    shared: Any = SimpleNamespace(
        runs_parent="",
        is_gone=lambda: False,
        group=SimpleNamespace(give_up=given_up.append),
        jobs=SimpleNamespace(cancel=unanswered),
    )
    cut = SparkCut(shared, topics=cast("Any", None), raw_config={}, sink_config={})
    cut.give_up()
    assert [event.is_set() for event in given_up] == [True]
    with pytest.raises(SparkJobError):
        cut._check()
