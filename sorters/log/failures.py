"""Which error it is: what a Spark job, a Kafka client or our own code threw, as one :class:`BusError`.

An error of ours in a Python worker reaches the driver only as text: Spark wraps it in a Java exception that holds the
worker's traceback. So the worker raises it inside a :class:`WorkerError`, whose text ends with a marker around the
error as JSON in base64, which no wrapping changes; :func:`worker_error` reads it in the exception and its causes.

That text also holds what users upstream wrote: names of tables, keys, values. So a marker counts only with the nonce of
the job, which the driver drew and no user knows, the last one counts, and what stands in it is a code and texts: the
class comes from the registry of codes.

Spark logs that text on executors and keeps it in its UI and event log. Where logs are redacted
(:mod:`schemas.redaction`) nothing else is in it than they may show, and the fields behind the marker are such, too.
"""

import base64
import binascii
import json
import re
import traceback
from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import Any

from edges.kafka.errors import HistoryLostError as HistoryLostError
from edges.kafka.errors import KafkaUnreachableError as KafkaUnreachableError
from schemas.errors import Action, BusError, UnexpectedError, error_of_code
from schemas.redaction import Redaction, is_shown, redacted_stack, redaction
from sorters.core.feed.large_messages import SinkMessageTooLargeError

_MARKER = re.compile(r"tidebus-error<([0-9a-f]{32}):([A-Za-z0-9+/=]+)>")
_CAUSES_MAX = 16
_PY4J_CALL = "An error occurred while calling"
_TRACEBACK = "Traceback (most recent call last):"
_JAVA_FRAME = "\tat "
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(:|$)")
"""How a line begins that names one: others of a traceback are indented, or say what was being handled."""
_WORKER_DIED = "Python worker exited unexpectedly"
_NO_SPACE = "No space left on device"
_TOO_LARGE = ("RecordTooLargeException", "RecordBatchTooLargeException")
_OF_CODE = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError, ValueError)
"""What code raises that meets what it does not know: the same records raise it again."""
_SPARKS_PYTHON = ("pyspark", "py4j")
_DATA_LOSS = ("OffsetOutOfRangeException", "Some data may have been lost", "KafkaIllegalStateException")


class SparkJobError(BusError):
    """A Spark job failed for a reason that we have no name for: a lost broker, no memory, a broken executor."""

    code, action = "sorter.spark_job", Action.RETRY


class WorkerDiedError(BusError):
    """A Python worker of Spark has died under a cut: a library of C ended it, or the system, for want of memory."""

    code, action = "sorter.worker_died", Action.RETRY


class RunFolderError(BusError):
    """Runs of a cut cannot be written where the service keeps its data: no space, no right, a broken disk."""

    code, action = "sorter.run_folder", Action.RETRY


class TaskHangsError(BusError):
    """A Spark task with a changefeed's cut did not end; it was killed, and its cut is tried again."""

    code, action = "sorter.task_hangs", Action.RETRY


class SparkStartError(BusError):
    """No Spark session could be had: the master does not answer, has no room, or the JVM did not start."""

    code, action = "sorter.spark_start", Action.RETRY


class SparkJarsMissingError(BusError):
    """Nobody says where Spark's Kafka connector is, and Spark is not asked to fetch it."""

    code, action = "sorter.spark_jars", Action.STOP_CHANGEFEED


class WorkerError(Exception):
    """Carries an error of ours out of a Spark Python worker; see the module."""

    def __init__(self, error: BusError, nonce: str) -> None:
        """``nonce`` is the job's: 32 hexadecimal digits, drawn at random by the driver.

        Where logs are redacted, raise it ``from None``: it says itself what may be said of where it comes from.
        """
        said = f"{error}" if redaction() is Redaction.OFF else f"{error}\n{redacted_stack(error)}\n"
        text = base64.b64encode(_carried(error).encode()).decode()
        super().__init__(f"{said} tidebus-error<{nonce}:{text}>")


class RedactedWorkerError(Exception):
    """Stands in a worker whose logs are redacted for an exception that is no error of ours, whose text may quote a
    row: a Kafka client's, the system's.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(redacted_stack(error))


def worker_error(error: BaseException, nonce: str) -> BusError | None:
    """Return the error of ours that a worker of the job with this nonce has raised; None: it has raised none."""
    for text in _texts(error):
        carried = [match.group(2) for match in _MARKER.finditer(text) if match.group(1) == nonce]
        if carried:
            return _read(carried[-1])
    return None


def _carried(error: BusError) -> str:
    """Return what the driver gets of an error, as :func:`error_as_json`: it decides by no field that is hidden."""
    if redaction() is Redaction.OFF:
        return error_as_json(error)
    shown = {name: value if is_shown(name, value) else "?" for name, value in error.fields.items()}
    return json.dumps([error.code, error.message, {name: _plain(value) for name, value in shown.items()}])


def error_as_json(error: BusError) -> str:
    """Return an error of ours as data: code, message and fields."""
    return json.dumps([error.code, error.message, {name: _plain(value) for name, value in error.fields.items()}])


def error_from_json(text: str | bytes) -> BusError | None:
    """Return the error of :func:`error_as_json`, by its code; None: it is none."""
    try:
        code, message, fields = json.loads(text)
        return error_of_code(str(code), str(message), {str(name): value for name, value in fields.items()})
    except (ValueError, TypeError, AttributeError, KeyError):
        return None


def _read(carried: str) -> BusError | None:
    try:
        return error_from_json(base64.b64decode(carried, validate=True))
    except binascii.Error:
        return None


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def bus_error(error: BaseException, kafka: str | None = None) -> BusError:
    """Return what ``error`` is to us; one of ours as it was raised. ``kafka``: the address of the brokers that were
    asked, which Java's errors do not say; None: it is not known.

    What a worker raised is one of ours already: who runs a job asks :func:`worker_error`.
    """
    if isinstance(error, BusError):
        return error
    texts = list(_texts(error))
    joined, reason = "\n".join(texts), _reason(texts) or repr(error)
    if any(name in joined for name in _TOO_LARGE):
        return SinkMessageTooLargeError("sink topic refused a message as too large", reason=reason)
    if any(name in joined for name in _DATA_LOSS):
        return HistoryLostError("raw log no longer holds the offsets of this batch", reason=reason)
    if "org.apache.kafka.common.errors" in joined and "TimeoutException" in joined:
        return KafkaUnreachableError("kafka did not answer in time", address=kafka, reason=reason)
    if _NO_SPACE in joined:
        return RunFolderError(
            "there is no room where the service, or an executor of spark, keeps its data", reason=reason
        )
    if is_of_code(error):
        return UnexpectedError.of(error)
    if _WORKER_DIED in joined:
        return WorkerDiedError("a python worker of spark has died under a cut", reason=reason)
    return SparkJobError("spark job failed", kind=type(error).__name__, reason=reason)


def is_of_code(error: BaseException) -> bool:
    """Tell whether an exception is a bug of ours, not the world's: no attempt to come will end otherwise.

    What Spark's own Python raises is the world's: without its JVM it stumbles over attributes that are None.
    """
    if not isinstance(error, _OF_CODE):
        return False
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return not any(frame.f_globals.get("__name__", "").split(".")[0] in _SPARKS_PYTHON for frame in frames)


def _reason(texts: list[str]) -> str:
    """Return the first line that says something. Py4J's own only names the call that failed, and what Spark says of an
    exception in a worker is that there was one: the traceback behind it ends with which.
    """
    for text in texts:
        lines = text.split("\n")
        for number, line in enumerate(lines):
            said = line.strip().removeprefix(": ")
            if said and not said.startswith(_PY4J_CALL):
                raised = _raised(lines[number + 1 :]) if said.endswith(_TRACEBACK) else ""
                return (raised or said)[:500]
    return ""


def _raised(lines: Iterable[str]) -> str:
    """Return the last line of a traceback that names an exception; '': none does."""
    of_python = takewhile(lambda line: not line.startswith(_JAVA_FRAME), lines)
    named = [line for line in of_python if _EXCEPTION.match(line)]
    return named[-1] if named else ""


def _texts(error: BaseException) -> Iterator[str]:
    """Yield the text of an exception and of its causes, Python's and Java's."""
    at: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if at is None:
            return
        yield str(at)
        java: Any = getattr(at, "java_exception", None) or getattr(at, "_origin", None)
        for _ in range(_CAUSES_MAX):
            if java is None:
                break
            yield str(java.toString())
            java = java.getCause()
        at = at.__cause__ or at.__context__
