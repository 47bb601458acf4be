"""The options of the Spark source, checked: what ``.option(name, value)`` may say. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from schemas.ids import Ts, UpstreamId
from sorters.core.source.errors import SourceOptionError

ROWS_PER_BATCH_MAX: Final = 500_000
"""Where ``maxRowsPerBatch`` says nothing: some hundred MB in a Spark task."""
EARLIEST, LATEST, IMAGE = "earliest", "latest", "image"
_NAMES: Final = (
    "raw",
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
class SourceOptions:
    """What a read was asked for."""

    upstream: UpstreamId
    table: TableName
    kafka: str
    kafka_config: str
    """The name of a properties file on the driver's machine; '': none."""
    starting: Ts | str
    """Changes above this ts; or ``earliest`` or ``latest``."""
    ending: Ts | str
    """Of ``spark.read`` alone: changes up to this ts, or ``latest``."""
    batch_rows_max: int | None
    """None: as many as there are."""
    pass_ddl_ts: Ts
    """DDLs up to it that replaced rows were followed by other means; 0: none."""


def read_options(given: Mapping[str, str], *, stream: bool) -> SourceOptions:
    """Return the options of ``readStream`` (``stream``) or ``read``.

    Args:
        given: as Spark hands them over: names in any case.

    Raises:
        SourceOptionError: one is unknown, missing or not allowed.
    """
    options = {name.lower(): value for name, value in given.items()}
    known = {name.lower(): name for name in _NAMES}
    if "changefeed" in options:
        raise SourceOptionError(
            "the source reads an upstream's raw log, which has the changes of all tables: give option raw, the id of "
            "the changefeed's upstream",
            option="changefeed",
        )
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
    return SourceOptions(
        upstream=_upstream(options),
        table=_table(options),
        kafka=kafka,
        kafka_config=kafka_config,
        starting=_bound(options, "startingTs", LATEST if stream else EARLIEST, (EARLIEST, LATEST)),
        ending=_bound(options, "endingTs", LATEST, (LATEST,)),
        batch_rows_max=_rows_max(options.get("maxrowsperbatch")),
        pass_ddl_ts=_number(options, "passDdlTs") if "passddlts" in options else Ts(0),
    )


def _upstream(options: Mapping[str, str]) -> UpstreamId:
    upstream = options.get("raw", "")
    if not _UPSTREAM.fullmatch(upstream):
        raise SourceOptionError("name the upstream whose raw log is read", option="raw", seen=upstream)
    return UpstreamId(upstream)


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
    if value.lower() == IMAGE:
        raise SourceOptionError(
            "the source does not read table images yet: copy the table at a ts, and start above that ts", option=name
        )
    return _number(options, name)


def _number(options: Mapping[str, str], name: str) -> Ts:
    value = options[name.lower()]
    if not re.fullmatch(r"\d{1,19}", value) or not 0 < int(value) <= _TS_MAX:
        raise SourceOptionError("option is a ts of TiDB (a number)", option=name, seen=value)
    return Ts(int(value))


def _rows_max(value: str | None) -> int | None:
    if value is None:
        return ROWS_PER_BATCH_MAX
    if not re.fullmatch(r"\d{1,12}", value):
        raise SourceOptionError(
            "option is a number of rows; 0 for as many as there are", option="maxRowsPerBatch", seen=value
        )
    return int(value) or None
