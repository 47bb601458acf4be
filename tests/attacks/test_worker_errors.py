"""A name from upstream in a Spark worker's error stays a name: it runs no code, and it is no error of its own."""

import base64
import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import Action, BusError, CorruptDataError, error_of_code
from sorters.core.feed.large_messages import SinkMessageTooLargeError
from sorters.log.failures import SparkJobError, WorkerError, bus_error, worker_error

NONCE = "0123456789abcdef" * 2
OTHER = "f" * 32


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def spark_text(error: BusError, nonce: str = NONCE) -> str:
    return (
        f"org.apache.spark.SparkException: Job aborted\n Traceback …\nWorkerError: {WorkerError(error, nonce)}\n\tat …"
    )


def marker(content: object, nonce: str) -> str:
    return f"tidebus-error<{nonce}:{base64.b64encode(json.dumps(content).encode()).decode()}>"


def test_pickle_in_a_table_name_does_not_run(tmp_path: Path) -> None:
    pickled = base64.b64encode(pickle.dumps(Touch(tmp_path / "ran"))).decode()
    for name in (f"tidebus-error<{pickled}>", f"tidebus-error<{NONCE}:{pickled}>"):
        error = SinkMessageTooLargeError("an encoded row is too large", table=f"d.{name}")
        carried = worker_error(RuntimeError(spark_text(error)), NONCE)
        assert type(carried) is SinkMessageTooLargeError
        assert carried.fields == error.fields
        assert type(bus_error(RuntimeError(spark_text(error)))) is SparkJobError
    assert not (tmp_path / "ran").exists()


def test_marker_in_a_table_name_is_not_taken_for_the_error() -> None:
    forged = marker(["sorter.kafka_unreachable", "forged", {}], OTHER)
    error = CorruptDataError("row does not decode", table=f"d.{forged}")
    carried = worker_error(RuntimeError(spark_text(error)), NONCE)
    assert isinstance(carried, CorruptDataError)
    assert (carried.message, carried.fields) == (error.message, error.fields)


def test_last_marker_wins_even_if_the_nonce_were_known() -> None:
    forged = marker(["sorter.kafka_unreachable", "forged", {}], NONCE)
    carried = worker_error(RuntimeError(spark_text(CorruptDataError("mine", table=forged))), NONCE)
    assert carried is not None
    assert carried.message == "mine"


@pytest.mark.parametrize("nonce", ["", "0" * 31, OTHER])
def test_error_of_another_job_is_none_of_ours(nonce: str) -> None:
    assert worker_error(RuntimeError(spark_text(CorruptDataError("x"), nonce)), NONCE) is None


@pytest.mark.parametrize(
    "content",
    [
        ["no.such_code", "x", {}],
        ["bus.config"],
        "text",
        {"code": 1},
        ["bus.config", "x", []],
        ["bus.config", "x", None],
        ["bus.unknown.__class__", "x", {"__reduce__": 1}],
    ],
)
def test_marker_with_anything_else_in_it_is_no_error(content: object) -> None:
    assert worker_error(RuntimeError(marker(content, NONCE)), NONCE) is None


def test_error_of_code_takes_any_field_names() -> None:
    error = error_of_code("bus.config", "m", {"message": 1, "self": 2, "code": 3, "table": "t"})
    assert (error.code, error.message, error.action) == ("bus.config", "m", Action.STOP_CHANGEFEED)


@given(
    message=st.text(max_size=40),
    fields=st.dictionaries(
        st.text(max_size=20).filter(lambda name: name not in {"message", "self"}),
        st.none() | st.booleans() | st.integers() | st.text(max_size=60),
        max_size=4,
    ),
    before=st.text(max_size=40),
)
def test_error_comes_back_whole_from_any_text_around_it(message: str, fields: dict[str, object], before: str) -> None:
    error = CorruptDataError(message)
    error.fields = fields
    cause = RuntimeError("outer")
    cause.__cause__ = RuntimeError(before + spark_text(error))
    carried = worker_error(cause, NONCE)
    assert type(carried) is CorruptDataError
    assert (carried.message, carried.fields) == (message, fields)
