"""With ``--redact-info-log`` nothing that a user wrote stands in a log line or in the text of an error."""

import ast
import base64
import json
import logging
import re
import traceback
from collections.abc import Iterator

import pytest

from compose.logs import JsonFormatter, LineFormatter
from schemas.errors import BusError, ConfigError, CorruptDataError, UnexpectedError
from schemas.redaction import SHOWN_NAMES, Redaction, parse_redaction, redacted, set_redaction
from sorters.log.failures import RedactedWorkerError, WorkerError, worker_error
from sorters.spark.worker.python_daemon import WorkerLines
from sorters.spark.worker.work import TaskWork, Work
from tests.support.sources.repository import PACKAGES, ROOT, sources, tree_of

SECRET = "Alice-4711"
KEY = SECRET.encode().hex()
FORMATTERS = [LineFormatter(), JsonFormatter()]
OUTSIDE = ("region_server", "simulation")
"""The embedded upstream and simulations: their rows are made up, and they are no process of a bus's."""


@pytest.fixture(params=["on", "marker"])
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    chosen = parse_redaction(request.param)
    assert chosen is not None
    set_redaction(chosen)
    yield request.param
    set_redaction(Redaction.OFF)


def bare(text: str) -> str:
    """Return what stands outside of marks."""
    out, depth = "", 0
    for char in text:
        depth += (char == "‹") - (char == "›")
        out += char if depth == 0 else ""
    assert depth == 0
    return out


def record(thrown: BaseException | None = None, **ids: object) -> logging.LogRecord:
    about = (type(thrown), thrown, thrown.__traceback__) if thrown is not None else None
    made = logging.LogRecord("sorters.run.job", logging.ERROR, "", 0, "run failed", None, about)
    vars(made).update(ids)
    return made


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    try:
        raise error from cause
    except Exception as caught:
        return caught


def field_names() -> set[str]:
    """Return the names of all fields that the product gives to errors."""
    names = set[str]()
    for source in sources():
        path = source.relative_to(ROOT)
        if path.parts[0] in PACKAGES and not set(OUTSIDE) & set(path.parts):
            calls = (node for node in ast.walk(tree_of(source)) if isinstance(node, ast.Call))
            names |= {
                word.arg
                for call in calls
                if isinstance(call.func, ast.Name) and call.func.id.endswith("Error")
                for word in call.keywords
                if word.arg not in (None, "message", "self")
            }
    return names


@pytest.mark.usefixtures("mode")
def test_field_of_an_error_that_is_not_listed_hides_what_is_in_it() -> None:
    hidden = {name for name in field_names() if SECRET not in bare(str(CorruptDataError("x", **{name: SECRET})))}
    assert {"key", "value", "reason", "query", "got", "node", "header", "said", "start", "end", "body"} <= hidden
    assert not hidden & SHOWN_NAMES
    for value in (SECRET.encode(), [SECRET], {"a": SECRET}, ValueError(SECRET), 4711):
        shown = bare(str(CorruptDataError("x", value=value)))
        assert SECRET not in shown and "4711" not in shown


def test_error_says_still_what_and_where(mode: str) -> None:
    text = str(CorruptDataError("row does not decode", table="a.b", key=KEY, commit_ts=7, reason=SECRET))
    hidden = {"on": "?", "marker": f"‹{SECRET}›"}[mode]
    assert text.startswith("[bus.corrupt_data] row does not decode (table=a.b, key=")
    assert text.endswith(f"commit_ts=7, reason={hidden})")
    assert "filter.rules" in str(ConfigError("bad", key="filter.rules", got="x"))
    assert KEY not in bare(text)


@pytest.mark.parametrize("formatter", FORMATTERS, ids=["text", "json"])
@pytest.mark.usefixtures("mode")
def test_log_line_hides_ids_that_are_not_listed_and_what_others_say(formatter: logging.Formatter) -> None:
    of_ours = str(CorruptDataError("row does not decode", table="a.b", value=SECRET))
    line = bare(formatter.format(record(changefeed="cf", note=SECRET, reason=ValueError(SECRET), error=of_ours)))
    assert SECRET not in line
    assert "run failed" in line and "cf" in line and "row does not decode" in line
    foreign = logging.LogRecord("botocore.x", logging.INFO, "", 0, f"sends {SECRET}", None, None)
    templated = logging.LogRecord("sorters.x", logging.INFO, "", 0, "%s failed", (SECRET,), None)
    for made in (foreign, templated):
        assert SECRET not in bare(formatter.format(made))


@pytest.mark.parametrize("formatter", FORMATTERS, ids=["text", "json"])
@pytest.mark.usefixtures("mode")
def test_traceback_shows_lines_and_kinds_and_no_text(formatter: logging.Formatter) -> None:
    cause = raised(ValueError(f"Duplicate entry '{SECRET}'"))
    error = raised(UnexpectedError.of(cause), cause)
    line = formatter.format(record(error))
    assert SECRET not in bare(line)
    assert "UnexpectedError" in line and "ValueError" in line and "test_redaction.py" in line


def test_marks_within_a_text_are_doubled() -> None:
    set_redaction(Redaction.MARKER)
    assert redacted("a‹b›c") == "‹a‹‹b››c›"
    set_redaction(Redaction.OFF)
    assert redacted("a‹b›c") == "a‹b›c"
    assert SECRET in str(BusError("x", key=SECRET)) and SECRET in LineFormatter().format(record(note=SECRET))


@pytest.mark.usefixtures("mode")
def test_json_line_is_json_still() -> None:
    shown = json.loads(JsonFormatter().format(record(raised(ValueError(SECRET)), changefeed="cf", key=KEY)))
    assert (shown["message"], shown["changefeed"]) == ("run failed", "cf")
    assert KEY not in bare(shown["key"])


def test_messages_of_log_lines_are_constant() -> None:
    """Else what is put into them would pass."""
    made = []
    for source in sources():
        path = source.relative_to(ROOT)
        if path.parts[0] not in PACKAGES or set(OUTSIDE) & set(path.parts):
            continue
        for node in ast.walk(tree_of(source)):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            at = 1 if node.func.attr == "log" else 0
            is_log = isinstance(node.func.value, ast.Name) and node.func.value.id in ("log", "_log")
            is_log = is_log and node.func.attr in ("log", "debug", "info", "warning", "error", "exception", "critical")
            if is_log and len(node.args) > at and isinstance(node.args[at], ast.JoinedStr | ast.BinOp):
                made.append(f"{path}:{node.lineno}")
    assert made == []


# -- Spark's workers ---------------------------------------------------------------------------------------------------

NONCE = "0123456789abcdef" * 2


def fails_with(error: Exception) -> Work:
    def work(number: int, frames: Iterator[bytes]) -> Iterator[bytes]:
        try:
            raise ValueError(SECRET)
        except ValueError as cause:
            raise error from cause

    return work


@pytest.mark.parametrize(
    "error",
    [
        CorruptDataError("row does not decode", table="d.t", key=KEY, reason=SECRET, values={"name": SECRET}),
        KeyError(SECRET),
        OSError(f"server refuses {SECRET}"),
    ],
    ids=["ours", "bug", "library"],
)
def test_what_a_worker_fails_with_says_nothing_of_a_row(mode: str, error: Exception) -> None:
    with pytest.raises((WorkerError, RedactedWorkerError)) as caught:
        list(TaskWork(fails_with(error), NONCE)(0, iter(())))
    # As Spark's Python writes it for the JVM.
    said = "".join(traceback.format_exception(caught.value))
    carried = [base64.b64decode(each).decode() for each in re.findall(r"tidebus-error<\w+:([\w+/=]+)>", said)]
    assert len(carried) == (0 if isinstance(error, OSError) else 1)
    for text in (bare(said), *carried):
        assert SECRET not in text
        assert KEY not in text
    assert "in work" in said, "where it was is said"
    if isinstance(error, CorruptDataError):
        ours = worker_error(RuntimeError(said), NONCE)
        assert isinstance(ours, CorruptDataError)
        assert ours.fields == {"table": "d.t", "key": "?", "reason": "?", "values": "?"}


def test_what_a_worker_logs_says_nothing_of_a_row(mode: str) -> None:
    line = WorkerLines().format(record(raised(ValueError(SECRET), OSError(SECRET)), key=KEY))
    assert line.startswith("ERROR sorters.run.job run failed\n")
    assert SECRET not in bare(line)
    assert KEY not in line
    assert "ValueError" in line
    foreign = record()
    foreign.name, foreign.msg = "confluent_kafka", f"got {SECRET}"
    assert SECRET not in bare(WorkerLines().format(foreign))
