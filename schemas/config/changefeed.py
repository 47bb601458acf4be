"""A changefeed's settings: TiCDC's file and sink URI, checked once, as frozen values.

:func:`load_changefeed` takes the sink URI and the file's text or parsed table; the URI's parameters override the file.
What it returns needs no second check. ``config_table`` is its inverse.
"""

import dataclasses
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from schemas.config.not_yet import (
    OF_DATABASE_SINKS,
    OF_STORAGE_SINKS,
    refuse_what_would_be_ignored,
    without_unread_tables,
)
from schemas.config.notes import notes_for
from schemas.config.parse.duration import Seconds
from schemas.config.parse.origin import Origin, Path
from schemas.config.parse.section import at_least, read_section, section, setting, shortest_duration, write_section
from schemas.config.parse.toml_lines import key_lines
from schemas.config.rules import check_changefeed
from schemas.config.sections import (
    ConsistentConfig,
    IntegrityConfig,
    MounterConfig,
    SchedulerConfig,
    SyncedStatusConfig,
)
from schemas.config.sink.kafka import CodecConfig, KafkaConfig
from schemas.config.sink.sink import FilterConfig, SinkConfig
from schemas.config.sink.sink_uri import SinkUri, parse_sink_uri
from schemas.errors import ConfigError
from schemas.ids import Ts

SQL_ROWS_PROTOCOL = "sql-rows"
"""Between the sorter and the processors of a database sink (:mod:`schemas.sink.sql_rows`); users cannot ask for it."""
SQL_MODE_DEFAULT = (
    "ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION"
)
"""TiDB's own default of sql_mode."""


@dataclass(frozen=True, kw_only=True)
class ChangefeedFile:
    """The top level of the changefeed file."""

    memory_quota_bytes: int = setting(1024 * 1024 * 1024, key="memory-quota", check=at_least(1))
    case_sensitive: bool = False
    """Of table-filter rules and dispatcher matchers."""
    force_replicate: bool = False
    """Also rows of tables without primary key and not-null unique key."""
    check_gc_safe_point: bool = True
    ignore_ineligible_table: bool = False
    """Create the changefeed although it holds tables without a usable key; they are skipped."""
    enable_sync_point: bool = False
    sync_point_interval_s: Seconds = setting(Seconds(600), key="sync-point-interval", check=shortest_duration("30s"))
    sync_point_retention_s: Seconds = setting(Seconds(86400), key="sync-point-retention", check=shortest_duration("1h"))
    bdr_mode: bool = False
    """Bidirectional replication: only what users wrote in this upstream, and DDL of the primary cluster alone."""
    error_stuck_duration_s: Seconds = setting(
        Seconds(1800), key="changefeed-error-stuck-duration", check=shortest_duration("30m")
    )
    enable_table_monitor: bool = False
    sql_mode: str = SQL_MODE_DEFAULT
    filter: FilterConfig = section(FilterConfig)
    mounter: MounterConfig = section(MounterConfig)
    sink: SinkConfig = section(SinkConfig)
    consistent: ConsistentConfig = section(ConsistentConfig)
    scheduler: SchedulerConfig = section(SchedulerConfig)
    integrity: IntegrityConfig = section(IntegrityConfig)
    synced_status: SyncedStatusConfig = section(SyncedStatusConfig)


@dataclass(frozen=True, kw_only=True)
class ChangefeedConfig(ChangefeedFile):
    """All settings of a changefeed, the sink URI's among them."""

    uri: SinkUri
    origin: Origin = dataclasses.field(default_factory=Origin, compare=False, repr=False)
    """Where the settings stand: for errors that only a table, a topic or a row brings up."""
    start_ts: Ts = Ts(0)
    """The changefeed's, where what its sorter writes depends on it: in the table versions of a storage sink."""
    notes: tuple[str, ...] = dataclasses.field(default=(), compare=False)
    """Settings that were accepted but mean nothing here, or less than they say: to be shown at creation."""

    @property
    def protocol(self) -> str:
        """As it was given; never unset. ``default`` is open-protocol. Of a database sink: the topic's in between."""
        if self.uri.server is not None:
            return SQL_ROWS_PROTOCOL
        assert self.sink.protocol is not None
        return self.sink.protocol

    @property
    def kafka(self) -> KafkaConfig:
        return self.sink.kafka

    @property
    def codec(self) -> CodecConfig:
        return self.sink.kafka.codec

    @property
    def default_topic(self) -> str:
        return self.uri.default_topic

    @property
    def tls(self) -> bool:
        """Talk TLS to the brokers."""
        if self.kafka.enable_tls is not None:
            return self.kafka.enable_tls
        return self.uri.scheme == "kafka+ssl" or self.kafka.ca is not None


def parse_changefeed_text(text: str, *, file: str | None = None) -> tuple[dict[str, Any], Origin]:
    """Parse a changefeed file's text into its table, as ZooKeeper keeps it, and the places of its keys.

    Raises:
        ConfigError: malformed TOML; the fields name file and line.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _malformed(str(error), text, file) from None
    return table, Origin(file=file, lines=key_lines(text))


def _malformed(reason: str, text: str, file: str | None) -> ConfigError:
    # tomllib says "… (at line 3, column 7)" or "… (at end of document)"; what it quotes is a character or a key.
    match = re.fullmatch(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", reason, re.DOTALL)
    where: dict[str, object] = {} if file is None else {"file": file}
    if not match:
        return ConfigError(f"changefeed file is no TOML: {reason}", **where)
    where["line"] = int(match[2]) if match[2] else max(text.count("\n") + (not text.endswith("\n")), 1)
    if match[3]:
        where["column"] = int(match[3])
    what = match[1][:1].lower() + match[1][1:]
    return ConfigError(f"changefeed file is no TOML: {what}" + ("" if match[2] else " at its end"), **where)


def load_changefeed(
    sink_uri: str, toml: Mapping[str, Any] | str | None = None, *, file: str | None = None
) -> ChangefeedConfig:
    """Read and check a changefeed's settings.

    Args:
        sink_uri: where to; its parameters override the file's settings.
        toml: the changefeed file, as text or as its parsed table (``ChangefeedInfo.config``). None: all defaults.
        file: the file's name, for errors.

    Raises:
        ConfigError: malformed TOML or URI, an unknown key, a value or a combination that is not allowed. ``fields``
            name the key in full and, where it stands in a text, file and line. Secrets are never in it.
        NotSupportedYetError: TiCDC knows the setting, and this version would ignore it.
    """
    table, origin = toml or {}, Origin(file=file)
    if isinstance(toml, str):
        table, origin = parse_changefeed_text(toml, file=file)
    assert not isinstance(table, str)
    uri, overrides, names = parse_sink_uri(sink_uri)
    origin = dataclasses.replace(origin, uri_params=names)
    merged = without_unread_tables(table, origin)
    for path, value in overrides.items():
        merged = _with(merged, path, value, origin)
    read = read_section(ChangefeedFile, merged, (), origin)
    values = {field.name: getattr(read, field.name) for field in dataclasses.fields(ChangefeedFile)}
    config = ChangefeedConfig(uri=uri, origin=origin, **values)
    check_changefeed(config, origin)
    read_here = OF_DATABASE_SINKS if uri.server else OF_STORAGE_SINKS if uri.storage else frozenset[str]()
    refuse_what_would_be_ignored(read, origin, read=read_here)
    return dataclasses.replace(config, notes=notes_for(config))


def config_table(config: ChangefeedConfig) -> dict[str, Any]:
    """Return the settings as the changefeed file's table, without defaults; JSON can hold it.

    ``load_changefeed(sink_uri, config_table(config)) == config`` for the sink URI that it was loaded with, and for one
    without parameters. Secrets stand in it in clear: it is for storage, never for people.
    """
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(ChangefeedFile)}
    return write_section(ChangefeedFile(**values))


def _with(table: Mapping[str, Any], path: Path, value: object, origin: Origin) -> dict[str, Any]:
    """Return the table with one setting replaced; the given one stays as it is."""
    key, *rest = path
    assert isinstance(key, str)
    inner = table.get(key, {})
    if rest and not isinstance(inner, Mapping):
        raise origin.error((key,), f"`{key}` must be a table")
    return {**table, key: _with(inner, tuple(rest), value, origin) if rest else value}
