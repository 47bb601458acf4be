"""Settings that TiCDC has and this version would ignore: refused by name, so that nothing is ignored silently.

This list shrinks as the sorter grows. A setting at its default always passes.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from schemas.config.parse.origin import Origin, Path, dotted
from schemas.config.parse.section import default_of, fields_by_key, is_section
from schemas.config.sink.storage import STORAGE_PROTOCOLS

PROTOCOLS = ("canal-json", "avro", "open-protocol", "default", "simple", "debezium", "debezium-avro", "canal")
"""Protocols with an encoder; ``default`` is open-protocol's old name."""

SETTINGS: dict[str, str] = {
    "enable-sync-point": "syncpoints",
    "sql-mode": "another sql_mode for value expressions",
    "sink.csv": "the csv protocol",
    "sink.terminator": "storage sinks",
    "sink.date-separator": "storage sinks",
    "sink.enable-partition-separator": "storage sinks",
    "sink.file-index-digit": "storage sinks",
    "sink.safe-mode": "database sinks",
    "sink.mysql-config": "database sinks",
    "sink.cloud-storage-config": "storage sinks",
    "sink.iceberg-config": "Iceberg sinks",
    "sink.kafka-config.sasl-gssapi-password": "a password, as the Kafka client gets its tickets by a keytab",
    "sink.kafka-config.sasl-gssapi-disable-pafxfast": "FAST, which Kerberos' own library decides about",
    "sink.kafka-config.sasl-oauth-audience": "an audience, which the Kafka client does not send",
}
"""Key of the setting (``[]``: any item of a list) and what it is about. A table: all that is in it."""

OF_DATABASE_SINKS = frozenset({"enable-sync-point", "sink.safe-mode", "sink.mysql-config"})
"""Keys of ``SETTINGS`` that a database sink reads."""
OF_KAFKA_SINKS: frozenset[str] = frozenset()
"""Keys of ``SETTINGS`` that a Kafka sink reads."""
OF_STORAGE_SINKS = frozenset(
    {
        *("sink.csv", "sink.terminator", "sink.date-separator", "sink.enable-partition-separator"),
        *("sink.file-index-digit", "sink.cloud-storage-config"),
    }
)
"""Keys of ``SETTINGS`` that a storage sink reads."""
OF_ICEBERG_SINKS = frozenset({"sink.iceberg-config"})
"""Keys of ``SETTINGS`` that an Iceberg sink reads."""
OTHER_SINKS = {
    "sync-point-interval": "database sinks",
    "sync-point-retention": "database sinks",
    "sink.safe-mode": "database sinks",
    "sink.mysql-config": "database sinks",
    **dict.fromkeys(sorted(OF_STORAGE_SINKS), "storage sinks"),
    **dict.fromkeys(sorted(OF_ICEBERG_SINKS), "Iceberg sinks"),
}
"""Keys of ``SETTINGS`` that TiCDC passes over in sinks of another kind; so do we, and say so."""
UNREAD_TABLES = {"sink.pulsar-config": "Pulsar sinks"}
"""Tables of TiCDC's whose keys we do not even know yet; empty they pass."""

WORDS: dict[str, tuple[str, ...]] = {
    "sink.protocol": PROTOCOLS,
    "sink.iceberg-config.catalog": ("hadoop", "jdbc", "rest"),
    "sink.kafka-config.sasl-mechanism": ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"),
    "sink.kafka-config.sasl-gssapi-auth-type": ("KEYTAB",),
    "sink.kafka-config.sasl-oauth-grant-type": ("client_credentials",),
}
"""Settings of which only these words do something yet."""


def without_unread_tables(table: Mapping[str, object], origin: Origin) -> Mapping[str, object]:
    """Return the changefeed file's table without the (empty) tables of ``UNREAD_TABLES``.

    Raises:
        NotSupportedYetError: one of them holds a setting.
    """
    sink = table.get("sink")
    if not isinstance(sink, Mapping):
        return table
    for name, what in UNREAD_TABLES.items():
        key = name.removeprefix("sink.")
        if sink.get(key):
            raise origin.not_yet(("sink", key), f"`{key}` is not supported yet: {what}")
    return {**table, "sink": {key: value for key, value in sink.items() if f"sink.{key}" not in UNREAD_TABLES}}


def refuse_what_would_be_ignored(config: Any, origin: Origin, *, read: frozenset[str] = frozenset()) -> None:
    """Hold a read section against ``SETTINGS``, without the keys that this sink reads, and ``WORDS``.

    Raises:
        NotSupportedYetError: a setting of theirs is not at its default.
    """
    words_of = WORDS | ({"sink.protocol": STORAGE_PROTOCOLS} if read is OF_STORAGE_SINKS else {})
    for path, value, default in walk_settings(config):
        key_path = re.sub(r"\[\d+\]", "[]", dotted(path))
        name = dotted(path[-1:])
        if key_path in words_of and value is not None and value not in words_of[key_path]:
            words = ", ".join(words_of[key_path])
            raise origin.not_yet(path, f"{name} `{value}` is not supported yet, supported are {words}")
        if value == default:
            continue
        unread = next(
            ((key, what) for key, what in SETTINGS.items() if key_path == key or key_path.startswith(f"{key}.")), None
        )
        key, what = unread or ("", None)
        if key in read or _is_of_another_sink(key_path, read) or (key == "sql-mode" and not _has_expressions(config)):
            continue
        if what is not None:
            raise origin.not_yet(path, f"`{name}` is not supported yet: {what}")


def other_sinks(key_path: str) -> str | None:
    """Return the kind of sinks that a setting is for, if it is for one."""
    return next((kind for key, kind in OTHER_SINKS.items() if key_path == key or key_path.startswith(f"{key}.")), None)


def _is_of_another_sink(key_path: str, read: frozenset[str]) -> bool:
    ours = {
        OF_DATABASE_SINKS: "database sinks",
        OF_STORAGE_SINKS: "storage sinks",
        OF_ICEBERG_SINKS: "Iceberg sinks",
    }.get(read)
    kind = other_sinks(key_path)
    return kind is not None and kind != ours


def _has_expressions(config: Any) -> bool:
    """A sql_mode can change how value expressions are read; a DDL is read by the one that it was run with."""
    return any(
        getattr(rule, name)
        for rule in config.filter.event_filters
        for name in vars(rule)
        if name.endswith("_value_expr")
    )


def walk_settings(section: Any, path: Path = ()) -> Iterator[tuple[Path, Any, Any]]:
    """Yield every setting of a section as (path, value, default), tables and items of lists before what is in them."""
    for key, (field, _) in fields_by_key(type(section)).items():
        value, here = getattr(section, field.name), (*path, key)
        if not is_section(value):
            yield here, value, default_of(field)
        inner = enumerate(value) if isinstance(value, tuple) else ()
        if is_section(value):
            yield from walk_settings(value, here)
        for index, item in inner:
            if is_section(item):
                yield from walk_settings(item, (*here, index))
