"""``tidebus explain``: what a changefeed would do with each table, before it is created."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compose.changefeeds import open_store
from compose.foresight.destinations import Destination
from compose.foresight.recorded import read_recorded_log
from consumers.control.changefeeds.store import NoFrontierError, StartTsError
from consumers.control.log.raw_log import retained_frontier
from edges.kafka.access import KafkaAccess
from edges.secrets import SecretReferenceError, resolve
from edges.zookeeper.access import ZooKeeperAccess
from schemas.config.changefeed import load_changefeed
from schemas.config.client_options import librdkafka_options
from schemas.config.settings import ChangefeedConfig
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import ConfigError
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import NAMESPACE_DEFAULT
from schemas.rawlog.topics import raw_topics
from sorters.core.feed.explain import ExplainedTable, Explanation, explain, topics_of
from sorters.core.feed.feed import compile_feed
from sorters.log.topic_admin import SinkTopicLimits, TopicAdmin
from sorters.run.schema_feed import schemas_at

Login = Mapping[str, str | int | bool]
"""How brokers are reached, in librdkafka's words, with secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changefeed:
    """What to explain."""

    config: ChangefeedConfig
    upstream: UpstreamId
    ts: Ts | None
    """Tables as they stand then; None: now."""
    login: Login | None = None
    """To the sink's brokers."""


def of_changefeed(
    zookeeper: ZooKeeperAccess, cluster: str, changefeed_id: str, namespace: str = NAMESPACE_DEFAULT
) -> Changefeed:
    """Return a changefeed that there is, at its checkpoint.

    Raises:
        BusError: there is none, or ZooKeeper does not answer.
    """
    with open_store(zookeeper, cluster) as store:
        info, status = store.get(changefeed_id, namespace), store.status(changefeed_id, namespace)
    ts = status.checkpoint_ts if status is not None else info.start_ts
    config = dataclasses.replace(load_changefeed(info.sink_uri, info.config), time_zone=info.time_zone)
    return Changefeed(config=config, upstream=info.upstream, ts=ts, login=login_of(info.sink_uri, info.config))


def login_of(sink_uri: str, config: Any, file: str | None = None) -> Login | None:
    """Return how a changefeed's brokers are reached, with secrets in place of references; None: there is no secret here
    that a reference stands for, or the sink is no Kafka.

    Raises:
        ConfigError: the settings are refused.
    """
    with contextlib.suppress(SecretReferenceError):
        resolved = load_changefeed(sink_uri, config, file=file, resolve=resolve)
        return librdkafka_options(resolved) if resolved.uri.brokers else None
    return None


def raw_log_schemas(kafka: KafkaAccess, upstream: UpstreamId, ts: Ts | None) -> tuple[SchemaStore, Ts]:
    """Return the schemas that the raw log has at ``ts`` (None: its newest), and that ts.

    Raises:
        NoFrontierError: no capture has published a frontier yet.
        StartTsError: the raw log does not reach back to ``ts``.
        BusError: Kafka does not answer.
    """
    topics = raw_topics(upstream)
    window = retained_frontier(kafka, topics)
    if window is None:
        raise NoFrontierError("no frontier of this upstream has been published yet", upstream=upstream)
    at = window.newest_ts if ts is None else ts
    schemas = schemas_at(kafka.config(), topics.ddl, at)
    if schemas is None:
        raise StartTsError("the schemas of this ts are gone", start_ts=at, oldest_ts=window.oldest_ts)
    return schemas, at


def recorded_schemas(folder: Path, ts: Ts | None) -> tuple[SchemaStore, Ts]:
    """Return the schemas of a recording at ``ts`` (None: its end), and that ts.

    Raises:
        ConfigError: there is no recording, or it begins later.
        BusError: it is not usable.
    """
    log, store = read_recorded_log(folder), SchemaStore.empty()
    at = log.end_ts if ts is None else ts
    if at < log.start_ts:
        raise ConfigError("the recording begins later", key="start-ts", start_ts=at, oldest_ts=log.start_ts)
    for record in log.ddl:
        store.apply(record)
    return store, at


def explained(
    config: ChangefeedConfig,
    schemas: SchemaStore,
    ts: Ts,
    *,
    login: Login | None,
) -> Explanation:
    """Explain a changefeed.

    Args:
        config: its settings, of which the answer tells; secrets that references stand for have no place in them.
        schemas, ts: its tables as they stand then.
        login: to the sink's brokers, which are asked for the topics that are there; None: they are not.

    Raises:
        ConfigError: the sink is no Kafka.
        BusError: the sink's brokers do not answer, or refuse.
    """
    if not config.uri.brokers:
        raise ConfigError("explain is about Kafka sinks", key="sink-uri", scheme=config.uri.scheme)
    feed = compile_feed(config, NAMESPACE_DEFAULT)
    topics: dict[str, SinkTopicLimits] | None = None
    if login is not None:
        admin = TopicAdmin(
            login,
            partitions=None,
            replication=config.kafka.replication_factor,
            auto_create=False,
            acks_all=config.kafka.required_acks == -1,
        )
        topics = admin.existing(topics_of(schemas, ts, feed))
    return explain(schemas, ts, config, feed, topics)


def as_json(explanation: Explanation | Destination) -> dict[str, Any]:
    """Return it for JSON."""
    return dataclasses.asdict(explanation)


def as_lines(explanation: Explanation) -> Iterator[str]:
    """Yield it as people read it: a table, then what does not fit, then rights and notes."""
    titles = ("table", "topic", "partitions", "partition by", "message key", "columns", "largest message", "limit")
    rows = [titles, *(_row(table) for table in explanation.tables)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(titles))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    subjects = [subject for table in explanation.tables for subject in table.subjects]
    if subjects:
        yield f"subjects: {', '.join(subjects)}"
    for table in explanation.tables:
        for trouble in table.trouble:
            what = f"; then {table.if_too_large}" if table.if_too_large and "may become a message" in trouble else ""
            yield f"warning: {table.table}: {trouble}{what}"
    for acl in explanation.acls:
        yield f"needs: {acl.resource} {acl.name}: {', '.join(acl.operations)}"
    for note in explanation.notes:
        yield f"note: {note}"


def _row(table: ExplainedTable) -> tuple[str, ...]:
    if not table.replicated:
        return (table.table, "(not replicated)", *[""] * 6)
    new = " (new)" if table.topic_exists is False else ""
    return (
        table.table if table.target is None else f"{table.table} as {table.target}",
        f"{table.topic}{new}",
        _shown(table.partitions),
        table.partition_by or "?",
        table.message_key or "?",
        _shown(table.columns),
        _shown(table.largest_message_bytes) + (" (6 MiB row)" if table.row_capped else ""),
        _shown(table.limit_bytes),
    )


def _shown(number: int | None) -> str:
    return "?" if number is None else str(number)
