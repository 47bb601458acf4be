"""The options of the Spark source, checked: what ``.option(name, value)`` may say. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from schemas.ids import Ts, UpstreamId, physical_ms
from schemas.nodes.changefeed import CLUSTER_DEFAULT, NAMESPACE_DEFAULT, is_id
from sorters.core.source.errors import SourceOptionError

if TYPE_CHECKING:  # each query starts some processes, and few need filters
    from sorters.core.source.feed_filter import FeedFilter

ROWS_PER_BATCH_MAX: Final = 500_000
"""Where ``maxRowsPerBatch`` says nothing: some hundred MB in a Spark task."""
AHEAD_S_MAX: Final = 3600.0
EARLIEST, LATEST, IMAGE = "earliest", "latest", "image"
_NAMES: Final = (
    "raw",
    "changefeed",
    "zookeeper",
    "zookeeperConfig",
    "cluster",
    "table",
    "kafka",
    "kafkaConfig",
    "startingTs",
    "endingTs",
    "maxRowsPerBatch",
    "passDdlTs",
)
_TS_MAX: Final = 2**63 - 1
_UPSTREAM: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
_TABLE: Final = re.compile(r"(?:`((?:[^`]|``)+)`|([^`.]+))\.(?:`((?:[^`]|``)+)`|([^`.]+))")


@dataclass(frozen=True, slots=True)
class TableName:
    """A table as TiDB names it; TiDB compares names without their case."""

    schema: str
    table: str

    def is_of(self, schema: str, table: str) -> bool:
        """Tell whether this is the name of a table."""
        return (self.schema.lower(), self.table.lower()) == (schema.lower(), table.lower())

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedName:
    """A changefeed, and where it is known."""

    namespace: str
    changefeed_id: str
    cluster: str
    zookeeper: str
    zookeeper_config: str
    """The name of a properties file on the driver's machine; '': none."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.changefeed_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a read was asked for."""

    upstream: UpstreamId
    """'' until the changefeed has said it."""
    feed: FeedName | None
    """None: all changes of the table are read."""
    feed_filter: "FeedFilter | None" = None
    """Of :attr:`feed`, once it was looked at."""
    table: TableName
    kafka: str
    kafka_config: str
    """The name of a properties file on the driver's machine; '': none."""
    starting: Ts | str
    """Changes above this ts; ``earliest``, ``latest``; or ``image``: the table's rows first, then changes."""
    ending: Ts | str
    """Of ``spark.read`` alone: changes up to this ts, or ``latest``."""
    batch_rows_max: int | None
    """None: as many as there are."""
    pass_ddl_ts: Ts
    """DDLs up to it that replaced rows were followed by other means; 0: none."""

    @property
    def not_replicated(self) -> SourceOptionError:
        """The error for a table that the changefeed leaves out."""
        message = "the changefeed does not replicate the table"
        return SourceOptionError(message, option="table", seen=str(self.table), changefeed=str(self.feed))


def read_options(given: Mapping[str, str], *, stream: bool) -> SourceOptions:
    """Return the options of ``readStream`` (``stream``) or ``read``.

    Args:
        given: as Spark hands them over: names in any case.

    Raises:
        SourceOptionError: one is unknown, missing or not allowed.
    """
    options = {name.lower(): value for name, value in given.items()}
    known = {name.lower(): name for name in _NAMES}
    for name in options:
        if name not in known:
            raise SourceOptionError("there is no such option", option=name, allowed=", ".join(_NAMES))
    refused = "endingts" if stream else "maxrowsperbatch"
    if refused in options:
        raise SourceOptionError(
            "option is of use with spark.read only" if stream else "option is of use with spark.readStream only",
            option=known[refused],
        )
    kafka, kafka_config = options.get("kafka", ""), options.get("kafkaconfig", "")
    if not kafka and not kafka_config:
        raise SourceOptionError("name the Kafka servers, or a properties file that names them", option="kafka")
    feed = _feed(options)
    return SourceOptions(
        upstream=_upstream(options) if feed is None else UpstreamId(""),
        feed=feed,
        table=_table(options),
        kafka=kafka,
        kafka_config=kafka_config,
        starting=_bound(options, "startingTs", LATEST if stream else EARLIEST, (EARLIEST, LATEST, IMAGE)),
        ending=_bound(options, "endingTs", LATEST, (LATEST,)),
        batch_rows_max=_rows_max(options.get("maxrowsperbatch")),
        pass_ddl_ts=_number(options, "passDdlTs") if "passddlts" in options else Ts(0),
    )


def check_time(ts: Ts, now_s: float) -> None:
    """Refuse a ts to start above, or to end at, that no log reaches for long: a query would wait, and not say why.

    Args:
        now_s: seconds since 1970, by this machine's clock, which may differ from TiDB's.

    Raises:
        SourceOptionError: it is more than an hour ahead.
    """
    ahead_s = physical_ms(ts) / 1000 - now_s
    if ahead_s > AHEAD_S_MAX:
        raise SourceOptionError("ts is of a time that has not come", seen=ts, ahead_s=round(ahead_s))


def _upstream(options: Mapping[str, str]) -> UpstreamId:
    upstream = options.get("raw", "")
    if not _UPSTREAM.fullmatch(upstream):
        raise SourceOptionError(
            "name the upstream whose raw log is read, or give a changefeed", option="raw", seen=upstream
        )
    return UpstreamId(upstream)


def _feed(options: Mapping[str, str]) -> FeedName | None:
    where = {name: options.get(name.lower(), "") for name in ("zookeeper", "zookeeperConfig", "cluster")}
    if "changefeed" not in options:
        for name, value in where.items():
            if value:
                raise SourceOptionError("option is of use with a changefeed only", option=name)
        return None
    if "raw" in options:
        raise SourceOptionError("a changefeed has its upstream: leave raw away", option="raw")
    namespace, _, changefeed_id = options["changefeed"].rpartition("/")
    namespace, cluster = namespace or NAMESPACE_DEFAULT, where["cluster"] or CLUSTER_DEFAULT
    if not (is_id(namespace) and is_id(changefeed_id)):
        raise SourceOptionError(
            "option is the id of a changefeed, or NAMESPACE/ID", option="changefeed", seen=options["changefeed"]
        )
    if not is_id(cluster):
        raise SourceOptionError("option is the id of a cluster of captures", option="cluster", seen=cluster)
    if not (where["zookeeper"] or where["zookeeperConfig"]):
        raise SourceOptionError(
            "name the ZooKeeper servers that know the changefeed, or a properties file that names them",
            option="zookeeper",
        )
    return FeedName(
        namespace=namespace,
        changefeed_id=changefeed_id,
        cluster=cluster,
        zookeeper=where["zookeeper"],
        zookeeper_config=where["zookeeperConfig"],
    )


def _table(options: Mapping[str, str]) -> TableName:
    match = _TABLE.fullmatch(options.get("table", ""))
    if match is None:
        raise SourceOptionError(
            "name a table as schema.table; a name with a dot in it stands in backticks",
            option="table",
            seen=options.get("table", ""),
        )
    quoted_schema, schema, quoted_table, table = match.groups()
    return TableName(
        schema or quoted_schema.replace("``", "`"),
        table or quoted_table.replace("``", "`"),
    )


def _bound(options: Mapping[str, str], name: str, default: str, words: tuple[str, ...]) -> Ts | str:
    value = options.get(name.lower(), default)
    if value.lower() in words:
        return value.lower()
    return _number(options, name, words)


def _number(options: Mapping[str, str], name: str, words: tuple[str, ...] = ()) -> Ts:
    value = options[name.lower()]
    if not re.fullmatch(r"\d{1,19}", value) or not 0 < int(value) <= _TS_MAX:
        allowed = ", ".join([*words, "a ts of TiDB (milliseconds since 1970, times 2^18)"])
        raise SourceOptionError("option is no ts", option=name, seen=value, allowed=allowed)
    return Ts(int(value))


def _rows_max(value: str | None) -> int | None:
    if value is None:
        return ROWS_PER_BATCH_MAX
    if not re.fullmatch(r"\d{1,12}", value):
        raise SourceOptionError(
            "option is a number of rows; 0 for as many as there are", option="maxRowsPerBatch", seen=value
        )
    return int(value) or None
