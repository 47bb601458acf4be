"""``tidebus verify``: a changefeed's TiDB against the database or the topics that it writes to, table by table.

It needs ZooKeeper for the changefeed's settings, the TiDB and the destination; no capture, and nothing stands still for
it. Of a database each table is read at a ts of its own: the one at which the destination shows it
(:mod:`consumers.verify.border`); topics are read up to a watermark (:mod:`consumers.verify.topic_check`).
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

from compose.changefeeds import open_store
from compose.operator.verify_topics import check_protocol, topic_check
from consumers.control.changefeeds.store import ChangefeedStore
from consumers.processors.apply.connection import Connector
from consumers.verify.core.images import ImagesToCome, judged
from consumers.verify.core.outcome import TableOutcome, Verdict, as_json, lines
from consumers.verify.core.proof_at import ProofAnswer, proof_at
from consumers.verify.reader import Name
from consumers.verify.table_check import CheckSettings, Proofs, SourceAt, TableCheck, TablePair
from consumers.verify.tidb_source import TidbSource
from edges.kafka.access import KafkaAccess
from edges.kafka.compacted import compacted_records
from edges.secrets import load_with_secrets, resolve
from edges.zookeeper.access import ZooKeeperAccess
from schemas.config.changefeed import load_changefeed
from schemas.config.parse.duration import Seconds
from schemas.config.settings import ChangefeedConfig
from schemas.errors import ConfigError
from schemas.ids import Ts
from schemas.nodes.changefeed import CLUSTER_DEFAULT, NAMESPACE_DEFAULT, ChangefeedInfo
from schemas.rawlog.topics import raw_topics
from schemas.sink.topic import destination_feed, life_of
from schemas.state_proof.carried import CarriedState, decode_state, feed_key
from schemas.tidb.table_name import table_named
from schemas.tidb.time_zone import UTC_NAME
from sorters.core.filter.table_filter import TableFilter
from sorters.core.route.partition_hash import table_hash
from sorters.core.route.table_route import TableRoutes

STATES_ANSWER_S = 10.0
READ_TIMEOUT_S = 3600.0
"""Of one statement: a table whose key does not begin with an integer is read by one."""


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """What ``tidebus verify`` takes."""

    changefeed_id: str
    namespace: str = NAMESPACE_DEFAULT
    cluster: str = CLUSTER_DEFAULT
    zookeeper: ZooKeeperAccess
    upstream_dsn: str = field(repr=False)
    downstream_dsn: str = field(default="", repr=False)
    """Empty: the changefeed's own sink URI."""
    tables: tuple[str, ...] = ()
    """``schema.table`` upstream; none: all of the changefeed."""
    keys_max: int = 100
    wait_s: float = 60.0
    kafka: KafkaAccess | None = None
    """Where the changefeed's raw log and proofs stand; None: no state proof is looked at."""


def verify(options: VerifyOptions, on_table: Callable[[TableOutcome], None], note: Callable[[str], None]) -> int:
    """Compare the changefeed's tables, say each when it is done, and return how many there were.

    Raises:
        ChangefeedNotFoundError: there is none.
        ConfigError: it writes to no database, nor topics that can be read, or a table that was asked for is not the
            changefeed's.
        NoAncientRowsError, NothingAppliedError
        DestinationUnreachableError, DestinationRefusedError: a server does not answer, or refuses.
    """
    upstream = _connector(options.upstream_dsn, "--upstream-dsn")
    with open_store(options.zookeeper, options.cluster) as store:
        info = store.get(options.changefeed_id, options.namespace)
        config = load_with_secrets(info)
        is_of_topics = bool(config.uri.brokers) and not options.downstream_dsn
        if is_of_topics:
            check_protocol(config)
        for text in notes(config):
            note(text)
        proofs: Proofs | None = None
        if config.state_proofs and options.kafka is None:
            note("state proofs are not looked at: --kafka does not say where they stand")
        elif config.state_proofs and options.kafka is not None:
            proofs = told_proofs(options.kafka, info, lambda: told_ts(store, info))
        source = TidbSource(upstream, _zone(info) if is_of_topics else "")
        pairs = table_pairs(config, source, options.tables)

        def images() -> ImagesToCome:
            return ImagesToCome.read(store.upstream_status(info.upstream), info.namespace, info.changefeed_id)

        if left := images().left:
            note(f"images of {left} tables are to come or under way: a table that differs meanwhile is not compared")
        if is_of_topics:
            check: ChecksTables = topic_check(
                config,
                info.namespace,
                pairs,
                source,
                upto_ts=written_ts(store, info),
                wait_s=options.wait_s,
                keys_max=options.keys_max,
                proofs=proofs,
            )
        else:
            dsn = options.downstream_dsn
            destination = _connector(dsn, "--downstream-dsn") if dsn else _own(config)
            check = TableCheck(source, destination, check_settings(options, info, config), proofs)
        return check_all(check, pairs, on_table, images)


def told_proofs(kafka: KafkaAccess, info: ChangefeedInfo, checkpoint_ts: Callable[[], Ts]) -> Proofs:
    """Return what reads a changefeed's state proofs out of their topic.

    ``checkpoint_ts`` returns up to where its sorter has written all states. The topic is read anew only for a ts that
    lies above what it was when the topic was read last.
    """
    states, upto_ts = list[CarriedState](), Ts(0)

    def answer(table: str, ts: Ts) -> ProofAnswer:
        nonlocal states, upto_ts
        if ts > upto_ts and (newest_ts := checkpoint_ts()) > upto_ts:
            # The ts first: what was told by then stands in the topic.
            states, upto_ts = told_states(kafka, info), newest_ts
        return proof_at(states, table, ts, upto_ts)

    return answer


def told_states(kafka: KafkaAccess, info: ChangefeedInfo) -> list[CarriedState]:
    """Return all states of a changefeed's tables that stand in their topic, but those of tables that are gone.

    Raises:
        KafkaUnreachableError: the topic does not answer.
        CorruptDataError: a record of the changefeed is none.
    """
    topic, name = raw_topics(info.upstream).states, (info.namespace, info.changefeed_id)
    by_key: dict[bytes, list[CarriedState]] = {}
    for _, key, content in compacted_records(kafka.config(), topic, STATES_ANSWER_S):
        if not key.startswith(feed_key(name)):
            continue
        if not content:
            by_key.pop(key, None)
        elif (record := decode_state(content)).life == life_of(info):
            by_key.setdefault(key, []).append(record.state)
    return [state for states in by_key.values() for state in states]


def told_ts(store: ChangefeedStore, info: ChangefeedInfo) -> Ts:
    """Return up to where a changefeed's sorter has told all states; 0: it has told none.

    Of a changefeed with processors what is resolved is what its sorter has written.
    """
    status = store.status(info.changefeed_id, info.namespace)
    return Ts(0) if status is None else status.resolved_ts


def check_settings(options: VerifyOptions, info: ChangefeedInfo, config: ChangefeedConfig) -> CheckSettings:
    """Return how a changefeed's tables are compared."""
    return CheckSettings(
        feed=destination_feed(options.cluster, info),
        needs_key=not config.force_replicate,
        keys_max=options.keys_max,
        wait_s=options.wait_s,
    )


class ChecksTables(Protocol):
    """What compares one table after the other."""

    def check(self, pair: TablePair) -> TableOutcome: ...


def written_ts(store: ChangefeedStore, info: ChangefeedInfo) -> Ts:
    """Return up to where a changefeed's topics are written; 0: nobody has said so yet."""
    status = store.status(info.changefeed_id, info.namespace)
    return Ts(0) if status is None else status.checkpoint_ts


def check_all(
    check: ChecksTables,
    pairs: Iterable[TablePair],
    on_table: Callable[[TableOutcome], None],
    images: Callable[[], ImagesToCome] = ImagesToCome,
) -> int:
    """Compare tables one after the other, and return how many there were. ``images`` says which are to come now."""
    count = 0
    for pair in pairs:
        # Beforehand: an image that becomes whole meanwhile may have been in part what was read.
        to_come = images()
        on_table(judged(check.check(pair), to_come))
        count += 1
    return count


def table_pairs(config: ChangefeedConfig, source: SourceAt, wanted: tuple[str, ...]) -> list[TablePair]:
    """Return the changefeed's tables that the source has now, each with its name at the destination.

    Raises:
        ConfigError: one that was asked for is not among them.
    """
    tables, routes = TableFilter(config.filter.rules, config.case_sensitive), TableRoutes(config)
    with source(Ts(0)) as now:
        names = [name for name in now.tables() if tables.matches(*name)]
    try:
        chosen = [table_named(names, text, "the changefeed") for text in wanted] or names
    except ValueError as error:
        raise ConfigError(f"{error}, as upstream has it", key="table") from error
    return [TablePair(source=name, destination=routes.name(*name), partition_of=partition_of(name)) for name in chosen]


def notes(config: ChangefeedConfig) -> list[str]:
    """Return the settings by which a destination lawfully differs from its source."""
    texts = []
    if config.filter.event_filters:
        texts.append("filter.event-filters leaves events out: the destination may lawfully differ")
    if config.filter.ignore_txn_start_ts:
        texts.append("filter.ignore-txn-start-ts leaves transactions out: the destination may lawfully differ")
    if config.uri.brokers and not config.wants_initial:
        texts.append('topics have the rows from before the changefeed only with initial = "snapshot"')
    return texts


def exit_status(verdicts: Iterable[Verdict]) -> int:
    """Return 0 where all tables are the same, 3 where one differs, 1 where one could not be compared."""
    seen = set(verdicts)
    if Verdict.DIFFERENT in seen:
        return STATUS_DIFFERENT
    return STATUS_NOT_COMPARED if Verdict.NOT_COMPARED in seen else 0


STATUS_DIFFERENT, STATUS_NOT_COMPARED = 3, 1


def shown(outcome: TableOutcome, *, in_json: bool) -> str:
    """Return one table's outcome: a line of JSON, or lines for people."""
    return json.dumps(as_json(outcome), ensure_ascii=False) if in_json else "\n".join(lines(outcome))


def _own(config: ChangefeedConfig) -> Connector:
    if config.uri.server is None:
        raise ConfigError("verify reads databases and topics", scheme=config.uri.scheme)
    return Connector(config.uri.server, _patient(config))


def _zone(info: ChangefeedInfo) -> str:
    """Return the zone in which a changefeed's messages have TIMESTAMPs, as TiDB's sessions name it."""
    return "+00:00" if info.time_zone == UTC_NAME else info.time_zone


def _connector(dsn: str, option: str) -> Connector:
    try:
        config = load_changefeed(dsn, resolve=resolve)
    except ConfigError as error:
        # What was given is not shown: before a scheme anything may stand, a password too.
        raise ConfigError(f"{option} is no address of a database: {error.message}") from None
    if config.uri.server is None:
        raise ConfigError(f"{option} must be mysql:// or tidb://", scheme=config.uri.scheme)
    return Connector(config.uri.server, _patient(config))


def _patient(config: ChangefeedConfig) -> ChangefeedConfig:
    mysql = replace(config.sink.mysql, read_timeout_s=Seconds(READ_TIMEOUT_S))
    return replace(config, sink=replace(config.sink, mysql=mysql))


def partition_of(source: Name) -> Callable[[int], int]:
    """Return what tells the partition of the topic between that has a table's rows: by its name upstream."""
    return lambda partitions: table_hash(*source) % partitions
