"""``tidebus recover``: a MySQL or TiDB whose upstream is gone, brought to the last frontier that Kafka holds.

TiCDC's ``cdc redo apply`` does the same from redo logs; here the raw log is the redo log. It needs Kafka, ZooKeeper and
the destination: no PD, no TiKV, no capture. First the changefeed's sorter, then its processors, each under the lock
that any of their kind takes. Killed at any point, it is begun again and goes on where it was.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from consumers.processors.apply.begin import begin_database_work
from consumers.processors.core.backoff import Backoff
from consumers.processors.core.recovery import check_sink, target_of
from consumers.processors.processor import ProcessorOptions
from consumers.processors.recovery import Applied, Stored, apply_upto, stored, wait_alone
from edges.kafka.access import KafkaAccess
from edges.secrets import load_with_secrets
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.session import Session
from schemas.errors import BusError
from schemas.ids import Ts, physical_ms
from schemas.masking import mask_uri
from schemas.nodes.changefeed import CLUSTER_DEFAULT, NAMESPACE_DEFAULT, state_of
from sorters.core.feed.last_frontier import HeldBack
from sorters.run.job import SorterOptions
from sorters.run.recovery import HeldByKafka, SorterRecovery, check_history, what_kafka_holds
from sorters.spark.session import DRIVER_MEMORY, create_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


log = logging.getLogger(__name__)

PATIENCE_S = 120.0
"""For trouble that may pass, without any progress: a broker, ZooKeeper or destination that restarts is back in less."""
SAY_S = 10.0
"""Between two words on how far it is: who waits at night must see that it moves, or that it does not."""


@dataclass(frozen=True, kw_only=True)
class RecoverOptions:
    """What ``tidebus recover`` takes."""

    changefeed_id: str
    namespace: str = NAMESPACE_DEFAULT
    cluster: str = CLUSTER_DEFAULT
    kafka: KafkaAccess
    zookeeper: ZooKeeperAccess
    master: str = "local[2]"
    driver_memory: str = DRIVER_MEMORY
    data_dir: Path
    dry_run: bool = False
    """Say what there is, and write nothing."""


@dataclass(frozen=True, kw_only=True)
class RecoverReport:
    """What was found and done."""

    changefeed: str
    destination: str
    """The sink URI, without passwords."""
    state: str
    """The changefeed's."""
    before_ts: Ts
    """The destination was known to have all up to here; the start ts if nothing was known."""
    held: HeldByKafka
    target_ts: Ts
    applied: Applied | None = None
    """None: nothing was written (``--dry-run``)."""


def recover(options: RecoverOptions, say: Callable[[str], None]) -> RecoverReport:
    """Recover a changefeed's destination; return when it shows what the upstream had at the target.

    Raises:
        CapturesAliveError, SorterAliveError, ProcessorAliveError: the changefeed is in other hands.
        ConfigError: there is nothing to recover so.
        BusError: it failed; what was done stands, and a second run goes on from there.
    """
    feed = ProcessorOptions(
        changefeed_id=options.changefeed_id,
        namespace=options.namespace,
        cluster=options.cluster,
        kafka=options.kafka,
        zookeeper=options.zookeeper,
    )
    with Session(options.zookeeper) as session:
        stored_feed = stored(session, feed)
        config = load_with_secrets(stored_feed.info)
        check_sink(stored_feed.info, config)
        if not options.dry_run:
            wait_alone(session, feed, say)
            stored_feed = stored(session, feed)  # a capture that was stopping may have brought it further
    held = what_kafka_holds(options.kafka, stored_feed.info, config, created_zxid=stored_feed.created_zxid)
    report = _found(stored_feed, held)
    if stored_feed.sorted_ts < report.target_ts:
        check_history(options.kafka, stored_feed.info, stored_feed.sorted_ts)
    if options.dry_run:
        return report
    for line in opening_lines(report):
        say(line)
    sorter = SorterRecovery(_sorter_options(options), lambda: _spark(options))
    try:
        _sort(sorter, report.target_ts, say)
    finally:
        sorter.close()
    applied = _apply(feed, report.target_ts, say)
    return replace(report, applied=applied)


def _found(feed: Stored, held: HeldByKafka) -> RecoverReport:
    info = feed.info
    return RecoverReport(
        changefeed=f"{info.namespace}/{info.changefeed_id}",
        destination=mask_uri(info.sink_uri),
        state=state_of(info, feed.status),
        before_ts=max(feed.applied_ts, info.start_ts),
        held=held,
        target_ts=target_of(info, held.frontier.consistent_ts, feed.sorted_ts),
    )


def _sort(sorter: SorterRecovery, target_ts: Ts, say: Callable[[str], None]) -> None:
    backoff = Backoff(PATIENCE_S)

    def on_progress(ts: Ts) -> None:
        backoff.progress()
        say(f"sorted up to {shown(ts)}")

    _patiently(backoff, say, lambda: sorter.run(target_ts, on_progress))


def _apply(feed: ProcessorOptions, target_ts: Ts, say: Callable[[str], None]) -> Applied:
    backoff, said_at, seen = Backoff(PATIENCE_S), time.monotonic(), (Ts(0), 0)
    done: list[Applied] = []

    def on_progress(ts: Ts, written: int) -> None:
        nonlocal said_at, seen
        if (ts, written) != seen:
            seen = ts, written
            backoff.progress()
        if time.monotonic() - said_at >= SAY_S:
            said_at = time.monotonic()
            say(f"applied up to {shown(ts)}, {written} rows and DDLs so far")

    _patiently(backoff, say, lambda: done.append(apply_upto(feed, begin_database_work, target_ts, on_progress)))
    return done[-1]


def _patiently(backoff: Backoff, say: Callable[[str], None], do: Callable[[], object]) -> None:
    """Do it until it succeeds.

    Raises:
        BusError: it needs an operator, or the trouble has not passed.
    """
    while True:
        try:
            do()
            return
        except BusError as error:
            wait_s = backoff.wait_s(error, time.monotonic())
            if wait_s is None:
                raise
            say(f"trying again: {error}")
            time.sleep(wait_s)


def _sorter_options(options: RecoverOptions) -> SorterOptions:
    return SorterOptions(
        changefeed_id=options.changefeed_id,
        namespace=options.namespace,
        cluster=options.cluster,
        kafka=options.kafka,
        zookeeper=options.zookeeper,
        master=options.master,
        data_dir=options.data_dir,
        driver_memory=options.driver_memory,
    )


def _spark(options: RecoverOptions) -> "SparkSession":
    name = f"tidebus-recover-{options.namespace}-{options.changefeed_id}"
    return create_session(options.master, name, options.data_dir, driver_memory=options.driver_memory)


# What is said. All of it follows from the report.


def shown(ts: Ts) -> str:
    """Return a ts for people.

    >>> shown(Ts(437_000_000_000_000_001))
    '437000000000000001 (2022-10-29 05:51:45.078Z)'
    """
    moment = datetime.fromtimestamp(physical_ms(ts) / 1000, UTC)
    return f"{ts} ({moment:%Y-%m-%d %H:%M:%S}.{physical_ms(ts) % 1000:03d}Z)"


def opening_lines(report: RecoverReport) -> list[str]:
    """Return what is known before anything is written."""
    last = report.held.frontier
    lines = [
        f"changefeed {report.changefeed} ({report.state}) to {report.destination}",
        f"destination has all up to {shown(report.before_ts)}",
        f"last frontier: {shown(last.resolved_ts)}, by owner revision {last.owner_rev}",
    ]
    lines += [held_line(group) for group in last.held]
    if report.target_ts < last.consistent_ts:
        lines.append(f"the changefeed's own target-ts ends it at {shown(report.target_ts)}")
    return lines


def held_line(held: HeldBack) -> str:
    """Return why the consistent ts is below the frontier."""
    tables = ", ".join(held.tables) or "any table"
    if held.ddl_start_ts is None:
        return f"held: {tables}: whole only up to {shown(held.ts)}"
    return (
        f"held: a DDL of {tables} could not be read, so only up to {shown(held.ts)}; "
        f"filter.ignore-txn-start-ts = [{held.ddl_start_ts}] in the changefeed's file passes over it"
    )


def closing_lines(report: RecoverReport) -> list[str]:
    """Return what was done, and what was not; one line is as ``cdc redo meta`` writes it."""
    last, beyond = report.held.frontier, report.held.beyond
    if report.applied is None:
        lines = [f"dry run: nothing was written; the destination can be brought to {shown(report.target_ts)}"]
        checkpoint_ts = report.before_ts
    else:
        checkpoint_ts = report.applied.checkpoint_ts
        what = f"{report.applied.rows} rows and {report.applied.ddls} DDLs were applied"
        lines = [f"recovered: the destination shows what the upstream had at {shown(checkpoint_ts)}; {what}"]
    lines.append(f"checkpoint-ts:{checkpoint_ts}, resolved-ts:{last.resolved_ts}")
    if beyond.changes:
        least = "" if beyond.all_seen else "at least "
        lines.append(
            f"not applied: {least}{beyond.changes} row changes of {', '.join(beyond.tables)} that had landed above "
            f"{shown(last.consistent_ts)}, the last at {shown(beyond.max_commit_ts)}: "
            "nobody knows whether that is all there was"
        )
    else:
        lines.append("not applied: nothing; no row had landed beyond it")
    return lines


def as_json(report: RecoverReport) -> dict[str, object]:
    """Return the same for programs."""
    last, beyond, applied = report.held.frontier, report.held.beyond, report.applied
    return {
        "changefeed": report.changefeed,
        "destination": report.destination,
        "state": report.state,
        "recovered": applied is not None,
        "checkpoint_ts": report.before_ts if applied is None else applied.checkpoint_ts,
        "resolved_ts": last.resolved_ts,
        "consistent_ts": last.consistent_ts,
        "target_ts": report.target_ts,
        "before_ts": report.before_ts,
        "held": [{"ts": group.ts, "tables": group.tables, "ddl_start_ts": group.ddl_start_ts} for group in last.held],
        "rows": 0 if applied is None else applied.rows,
        "ddls": 0 if applied is None else applied.ddls,
        "not_applied": {
            "changes": beyond.changes,
            "tables": beyond.tables,
            "max_commit_ts": beyond.max_commit_ts,
            "all_seen": beyond.all_seen,
        },
    }
