"""What the console tells of what has happened."""

from contextlib import closing
from dataclasses import replace

import pytest

from consumers.control.api.backend import Backend
from consumers.control.api.context import ApiContext
from consumers.control.console import watch
from consumers.control.console.core.history import History, SeenBus
from schemas.ids import Ts
from schemas.nodes.changefeed import ChangefeedStatus
from tests.support.control.api import Api
from tests.support.control.console_api import BASE, put_in
from tests.support.control.memory_bus import ME, URI, Memory
from tests.support.upstream.feed_sink import wait_until


def test_history_of_the_bus_is_kept_whether_or_not_somebody_looks(
    bus: Memory, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, look = [], watch.seen_bus

    def counted(bus: Backend | None) -> SeenBus:
        looked.append(bus)
        return look(bus)

    monkeypatch.setattr(watch, "LOOK_S", 0.01)
    monkeypatch.setattr(watch, "seen_bus", counted)
    context = ApiContext()
    context.backend = bus
    with closing(watch.HistoryWatch(context)) as kept:
        wait_until(lambda: len(looked) > 1, lambda: None)
        bus.live = [ME]
        wait_until(lambda: bool(kept.events()), lambda: None)
        put_in(bus, URI, "failed", "sorter.topic_missing")
        wait_until(lambda: bool(kept.events(("default", "cf"))), lambda: None)
        context.backend = None
        wait_until(lambda: "cannot look" in kept.events()[0]["text"], lambda: None)
    api.context.history = kept
    said = api.ask("GET", f"{BASE}/events")[1]
    assert said["capture"] == ME.capture_id
    assert [item["text"] for item in said["items"]][::-1][:2] == [
        "capture 127.0.0.1:2 has gone",
        "changefeed cf is failed: sorter.topic_missing",
    ]
    (of_feed,) = api.ask("GET", f"{BASE}/events?changefeed=cf")[1]["items"]
    assert of_feed["changefeed"] == "cf"
    shown = api.ask("GET", f"{BASE}/changefeeds/cf")[1]["history"]
    assert [event["text"] for event in shown["events"]] == [of_feed["text"]]


def test_batches_of_a_changefeed_say_where_they_ran(bus: Memory, api: Api) -> None:
    history = History()
    for checkpoint_ts, rows, spark in ((5, 0, 0), (9, 7, 3)):
        status = ChangefeedStatus(
            state="normal",
            checkpoint_ts=Ts(checkpoint_ts),
            resolved_ts=Ts(9),
            rows_total=rows,
            spark_rows_total=spark,
            batch_rows=rows,
            batch_s=0.5,
        )
        bus.kept["default", "cf"] = replace(bus.kept["default", "cf"], status=status)
        history.take(watch.seen_bus(bus), float(checkpoint_ts))
    (batch,) = history.batches(("default", "cf"))
    assert {"rows": 7, "seconds": 0.5, "rows_since": 7, "spark_rows_since": 3, "checkpoint_ts": 9}.items() <= (
        batch.items()
    )
