"""What waits for what, read from one overview (:mod:`consumers.control.api.overview`)."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from consumers.control.core.changefeeds.errors import WAITS
from schemas.config.sink.schemes import is_lake_scheme

BEHIND_S: Final = 10.0
"""A stage that takes no longer is at work, and waits for nobody; nor is an owner missed that was silent no longer."""


def lags_of(feed: Mapping[str, Any], upstream: Mapping[str, Any] | None) -> dict[str, float | None]:
    """Return the seconds that a changefeed's newest row spent in each stage; None: the stage says nothing, or is none.

    ``raw_log``: from TiKV until it can be cut; ``sorter``: until it stands in the changefeed's topics;
    ``destination``: until it is applied, where processors apply it.
    """
    pulled = upstream.get("lag_s") if upstream else None
    whole, sorted_lag = feed.get("checkpoint_lag_s"), feed.get("sorter_lag_s")
    until_topic = whole if sorted_lag is None else sorted_lag
    return {
        "raw_log": _seconds(pulled),
        "sorter": None if until_topic is None or pulled is None else _seconds(until_topic - pulled),
        "destination": None if sorted_lag is None or whole is None else _seconds(whole - sorted_lag),
        "whole": _seconds(whole),
    }


def waits_of(overview: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return what stands still or is behind: ``who``, ``waits_for`` and, of a changefeed, its ``namespace``/``id``."""
    upstreams = {item["upstream"]: item for item in overview["upstreams"]}
    waits = list(_of_bus(overview))
    waits += [wait for item in overview["upstreams"] for wait in _of_upstream(item)]
    for feed in overview["changefeeds"]:
        reason = _of_feed(feed, upstreams.get(feed["upstream"]))
        if reason:
            name = {"namespace": feed["namespace"], "id": feed["id"]}
            waits.append({"who": f"changefeed {feed['id']}", "waits_for": reason, **name})
    return waits


def _of_bus(overview: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    captures = overview["captures"]
    if overview["changefeeds"] and not captures:
        yield {"who": "the bus", "waits_for": "a capture: none lives"}
    if captures and not any(capture.get("is_owner") for capture in captures):
        yield {"who": "the bus", "waits_for": "an owner: no capture is one"}


def _of_upstream(upstream: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    who = f"upstream {upstream['upstream']}"
    if (silent_s := upstream.get("silent_s") or 0.0) > BEHIND_S:
        yield {"who": who, "waits_for": f"its owner, which has said nothing for {silent_s:.0f} s"}
    if error := upstream.get("error"):
        yield {"who": who, "waits_for": f"{error.get('code', '')} {error.get('message', '')}".strip()}
    for group in upstream.get("held", ()):
        for table, name in zip(group["tables"], group["names"], strict=False):
            yield {"who": f"table {name or table}", "waits_for": "its upstream: it is held at a ts of its own"}
    for stall in upstream.get("stalls", ()):
        yield {"who": who, "waits_for": str(stall)}


def _of_feed(feed: Mapping[str, Any], upstream: Mapping[str, Any] | None) -> str:
    """Return the first reason of a changefeed's way, '': it waits for nobody."""
    error = feed.get("error")
    match feed["state"]:
        case "failed":
            return f"you: it has failed with {error['code']}" if error else "you: it has failed"
        case "stopped":
            return "you: it is paused"
        case "finished" | "removed":
            return ""
        case "warning" if error and error["code"] in WAITS:
            return f"its upstream: {error['code']}"
        case "warning" if error:
            return f"{error['code']}, and is tried again"
    if not feed.get("sorter"):
        return "a sorter service that runs it"
    prologue = feed.get("prologue")
    if prologue and not prologue["is_complete"]:
        return f"its prologue: what was before the raw log is read from TiKV, attempt {prologue['attempt']}"
    lags = {stage: lag_s or 0.0 for stage, lag_s in lags_of(feed, upstream).items() if stage != "whole"}
    late = {stage: lag_s - BEHIND_S - _pause_s(feed, stage) for stage, lag_s in lags.items()}
    stage = max(late, key=late.__getitem__)
    if late[stage] <= 0:
        return ""
    return f"{_STAGES[stage]}: {lags[stage]:.0f} s"


def _pause_s(feed: Mapping[str, Any], stage: str) -> float:
    """Return how long rows wait in a stage by the changefeed's own settings; a former version's owner says nothing."""
    pauses_in = "sorter" if is_lake_scheme(feed.get("sink", "")) else "destination"
    return float(feed.get("pause_s") or 0.0) if stage == pauses_in else 0.0


_STAGES: Final = {
    "raw_log": "the upstream, whose frontier is behind",
    "sorter": "its sorter, which is behind the raw log",
    "destination": "its destination, which is behind the topic",
}


def _seconds(value: float | None) -> float | None:
    return None if value is None else max(0.0, round(value, 1))
