"""What the official `cdc cli` was called with, given to `tidebus cli`: exit status and what is printed are the same.

``tests/data/ticdc-api`` has every call. JSON must hold the recorded fields, other text the recorded labels, refusals
the recorded code where the API gives one.
"""

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from compose.cli import run_cli
from consumers.control.api.serving.server import ApiServer
from tests.support.recorded.recorded_answers import RecordedBus, missing
from tests.support.recorded.recorded_ticdc import cli_calls, exchanges

CF_TOML: Final = """
[filter]
rules = ["*.*", "!test.*"]
[[filter.event-filters]]
matcher = ["bank.log"]
ignore-event = ["drop table", "truncate table"]
[mounter]
worker-num = 8
[[sink.dispatchers]]
matcher = ["bank.*"]
partition = "index-value"
topic = "{schema}_{table}"
"""
"""The file of the recording's `changefeed create --changefeed-id=full`, by the request that it made."""
NOT_AS_RECORDED: Final = {
    ("classic", "tso query"): "a capture knows PD; TiCDC's needs --pd",
    ("new", "tso query"): "as before",
    ("classic", "changefeed verify-gc-safepoint"): "no such verb: TiCDC shows help and 0, we end with 2 and say so",
    ("new", "changefeed verify-gc-safepoint"): "as before",
    ("new", "processor list"): "the new architecture has no processors and shows help; ours list them",
    ("classic", "unsafe show-metadata"): "nodes of ZooKeeper, not of etcd",
    ("new", "unsafe show-metadata"): "as before",
    ("classic", "unsafe resolve-lock --region=2"): "TiCDC says nothing; ours what it did",
    ("new", "unsafe resolve-lock --region=2"): "as before",
}
"""Architecture and call, or how it begins, of what ends or prints otherwise on purpose, and why."""
NOT_SHOWN: Final = {
    ".config.sink.kafka_config": "settings that depend on the sink are shown once they are set",
    ".config.sink.file_index_width": "as before",
    ".config.scheduler.region_threshold is 100000, was 10000": "the classic default; it has no effect here",
}
"""Faults that are none, and why."""
OTHER_CODES: Final = {
    "CDC:ErrSinkUnknownProtocol": "[bus.config] `protocol` must be one of",
    "CDC:ErrKafkaNewProducer": "CDC:ErrSinkURIInvalid",
    "CDC:ErrMetaListDatabases": "CDC:ErrStartTsBeforeGC",
    "CDC:ErrChangefeedUpdateRefused": "[changefeed.update_refused]",
}
"""TiCDC's code of a refusal, and what ours says of the same: the file is checked before the server is asked, one code
for all sinks, what bounds start_ts is the raw log, and no question is asked of a changefeed that runs."""


class Capture:
    """A server and what a call of our command prints."""

    def __init__(self, address: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.address, self.capsys = address, capsys

    def call(self, args: list[str]) -> tuple[int, str, str]:
        """Return exit status, output and errors."""
        # It never ends by itself; the recording was ended after 40 s, and then the CLI's status is `timeout`'s.
        more = ["--count", "2"] if "statistics" in args else []
        status = run_cli(["cli", "--server", self.address, *args, *more])
        shown = self.capsys.readouterr()
        return status, shown.out, shown.err


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cf.toml").write_text(CF_TOML)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def reason_for(name: str, args: list[str]) -> str:
    """Return why a call is answered otherwise on purpose; '': it is not."""
    called = " ".join(args)
    return next((why for (kind, call), why in NOT_AS_RECORDED.items() if kind == name and called.startswith(call)), "")


def faults_of(recorded: dict[str, Any], status: int, out: str, err: str) -> Iterator[str]:
    """Yield what a call of ours does otherwise than the recorded one."""
    if (status == 0) is not (recorded["exit"] in (0, 124)):
        yield f"ends with {status}, was {recorded['exit']}: {err}"
        return
    if status:
        code = re.search(r"\[(CDC:\w+)\]", recorded["output"])
        said = code and OTHER_CODES.get(code[1], code[1])
        if said and said not in err:
            yield f"says {err!r}, was {recorded['output']!r}"
        return
    yield from (fault for fault in outputs_differ(recorded["output"], out) if fault not in NOT_SHOWN)


def outputs_differ(recorded: str, ours: str) -> list[str]:
    """Return what an output holds that ours does not: JSON by fields, text by the labels at the head of its lines."""
    if recorded.startswith(("{", "[")):
        (was, before), (now, behind) = first_json(recorded), first_json(ours)
        return missing(was, now) + ([] if bool(before) == bool(behind) else ["one value or several"])
    was_labels, now_labels = labelled(recorded), labelled(ours)
    if not recorded:
        return [f"prints {ours!r}"] if ours else []
    faults = [f"lacks {label!r}" for label in was_labels if label not in now_labels]
    if "Info" in was_labels and not faults:
        faults += missing(json.loads(was_labels["Info"]), json.loads(now_labels["Info"]))
    return faults + [
        f"{label} is another" for label in ("ID", "SinkURI") if was_labels.get(label) != now_labels.get(label)
    ]


def first_json(text: str) -> tuple[Any, str]:
    """Return the first value of a text, and what follows."""
    value, end = json.JSONDecoder().raw_decode(text)
    return value, text[end:].strip()


def labelled(text: str) -> dict[str, str]:
    """Return the lines of a text by their label, or by all of it; without the difference that `update` shows in a
    form of its own, ours on standard error."""
    lines = [line.strip() for line in text.splitlines() if not line.startswith(("Diff of", "{Type:"))]
    return {line.partition(": ")[0]: line.partition(": ")[2] for line in lines}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", ["classic", "new"])
def test_each_recorded_call_of_cdc_cli_ends_and_prints_the_same(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    recorded, faults = list(cli_calls(name)), []
    assert len(recorded) == 37
    bus = RecordedBus(json.loads(next(exchanges(name))["response"]))
    with closing(ApiServer("127.0.0.1:0")) as server, server.serving(bus):
        capture = Capture(server.address, capsys)
        for number, call in enumerate(recorded):
            differences = list(faults_of(call, *capture.call(call["args"])))
            if reason_for(name, call["args"]):
                differences = [] if differences else ["is no other answer any more"]
            faults += [f"{number} {' '.join(call['args'])[:70]}: {fault}" for fault in differences]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("recorded", "ours", "fault"),
    [
        ((0, '{"a": 1}'), (1, ""), "ends with 1, was 0: said"),
        ((1, "Error: [CDC:ErrChangeFeedNotExists]gone"), (1, ""), "says 'said'"),
        ((0, '{"id": "a"}'), (0, '{"id": "b"}'), ".id is 'b', was 'a'"),
        ((0, "Removed.\nID: a"), (0, "Removed.\nID: b"), "ID is another"),
        ((0, "Removed.\nID: a"), (0, "ID: a"), "lacks 'Removed.'"),
        ((0, ""), (0, "hello"), "prints 'hello'"),
        ((124, '{"a": "0ms"}\n{"a": "0ms"}'), (0, '{"a": "0ms"}'), "one value or several"),
    ],
)
def test_comparison_of_calls_sees_each_kind_of_difference(
    recorded: tuple[int, str], ours: tuple[int, str], fault: str
) -> None:
    (differences,) = faults_of({"exit": recorded[0], "output": recorded[1]}, *ours, "said")
    assert differences.startswith(fault)
