"""A changefeed's settings: TiCDC's file and sink URI, checked once, as frozen values.

:func:`load_changefeed` takes the sink URI and the file's text or parsed table; the URI's parameters override the file.
What it returns needs no second check.
"""

import dataclasses
import re
import tomllib
from collections.abc import Mapping

from schemas.config.adjusted import adjusted
from schemas.config.not_yet import (
    OF_DATABASE_SINKS,
    OF_ICEBERG_SINKS,
    OF_KAFKA_SINKS,
    OF_STORAGE_SINKS,
    refuse_what_would_be_ignored,
    without_unread_tables,
)
from schemas.config.notes import notes_for
from schemas.config.parse.nesting import LEVELS_MAX, nests_too_deep
from schemas.config.parse.origin import Origin, Path
from schemas.config.parse.references import Resolve, has_references, with_secrets, with_stand_ins
from schemas.config.parse.section import read_section
from schemas.config.parse.toml_lines import key_lines
from schemas.config.rules import check_changefeed
from schemas.config.settings import ChangefeedConfig, ChangefeedFile
from schemas.config.sink.sink_uri import parse_sink_uri
from schemas.errors import ConfigError

_WHERE = ("key", "sink_uri_parameter", "where", "file", "line")
"""Fields of an error that say where a setting stands, and nothing of its value."""


def parse_changefeed_text(text: str, *, file: str | None = None) -> tuple[dict[str, object], Origin]:
    """Parse a changefeed file's text into its table, as ZooKeeper keeps it, and the lines of its keys.

    Raises:
        ConfigError: malformed TOML; the fields name file and line.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _malformed(str(error), text, file) from None
    except ValueError:  # Python reads no number of more than 4,300 digits
        match = re.search("[0-9_]{4300,}", text)
        line = text.count("\n", 0, match.start() if match else 0) + 1
        raise _malformed(f"a number of thousands of digits (at line {line}, column 1)", text, file) from None
    except RecursionError:
        table = None
    if table is None or nests_too_deep(table):
        where: dict[str, object] = {} if file is None else {"file": file}
        raise ConfigError("changefeed file nests too deep", levels_max=LEVELS_MAX, **where)
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
    sink_uri: str,
    toml: Mapping[str, object] | str | None = None,
    *,
    file: str | None = None,
    resolve: Resolve | None = None,
) -> ChangefeedConfig:
    """Read and check a changefeed's settings.

    Args:
        sink_uri: where to; its parameters override the file's settings.
        toml: the changefeed file, as text or as its parsed table (``ChangefeedInfo.config``). None: all defaults.
        file: the file's name, for errors.
        resolve: finds the secrets that references stand for, for who connects (``edges.secrets``); what it raises is
            raised. None: stand-ins are checked, and stand in what is returned.

    Raises:
        ConfigError: malformed TOML or URI, an unknown key, a value or a combination that is not allowed. ``fields``
            name the key in full and, where it stands in a text, file and line. Secrets are never in it, nor what a
            reference stands for.
        NotSupportedYetError: TiCDC knows the setting, and this version would ignore it.
    """
    table, origin = toml or {}, Origin(file=file)
    if isinstance(toml, str):
        table, origin = parse_changefeed_text(toml, file=file)
    assert not isinstance(table, str)
    if resolve is None or not (has_references(sink_uri) or has_references(table)):
        return _checked(*with_stand_ins(sink_uri, table, origin), origin)
    secret_uri, secret_table = with_secrets(sink_uri, table, resolve, origin)
    checked = _checked(*with_stand_ins(sink_uri, table, origin), origin)
    return _resolved(checked, secret_uri, secret_table, origin)


def _resolved(
    checked: ChangefeedConfig, sink_uri: str, table: Mapping[str, object], origin: Origin
) -> ChangefeedConfig:
    """Check what has passed with stand-ins with the secrets themselves, of which no error says a word."""
    where: dict[str, object]
    try:
        config = _checked(sink_uri, table, origin)
    except ConfigError as error:
        where = {name: error.fields[name] for name in _WHERE if name in error.fields}
    else:
        server, stood_in = config.uri.server, checked.uri.server
        if server is None or stood_in is None or server.user == stood_in.user:
            return config
        server = dataclasses.replace(server, hides_user=True)
        return dataclasses.replace(config, uri=dataclasses.replace(config.uri, server=server))
    # Outside of the block: the error with the secret in it is no context of this one.
    raise ConfigError("a secret that a reference stands for is not allowed in its place", **where)


def _checked(sink_uri: str, table: Mapping[str, object], origin: Origin) -> ChangefeedConfig:
    uri, overrides, names = parse_sink_uri(sink_uri)
    origin = dataclasses.replace(origin, uri_params=names)
    merged = without_unread_tables(table, origin)
    for path, value in overrides.items():
        merged = _with(merged, path, value, origin)
    merged, changed = adjusted(merged)
    read = read_section(ChangefeedFile, merged, (), origin)
    values = {field.name: getattr(read, field.name) for field in dataclasses.fields(ChangefeedFile)}
    config = ChangefeedConfig(uri=uri, origin=origin, **values)
    check_changefeed(config, origin)
    refuse_what_would_be_ignored(read, origin, read=_read_by(config))
    notes = (*changed, *notes_for(config))
    if uri.server is not None:  # a database has whole rows, whatever the selectors say
        config = dataclasses.replace(config, sink=dataclasses.replace(config.sink, column_selectors=()))
    return dataclasses.replace(config, notes=notes)


def _read_by(config: ChangefeedConfig) -> frozenset[str]:
    uri = config.uri
    if uri.is_lake:
        return OF_ICEBERG_SINKS
    if uri.server:
        return OF_DATABASE_SINKS
    return OF_STORAGE_SINKS if uri.storage or config.protocol == "csv" else OF_KAFKA_SINKS


def _with(table: Mapping[str, object], path: Path, value: object, origin: Origin) -> dict[str, object]:
    """Return the table with one setting replaced; the given one stays as it is."""
    key, *rest = path
    assert isinstance(key, str)
    if not rest:
        return {**table, key: value}
    inner = table.get(key, {})
    if not isinstance(inner, Mapping):
        raise origin.error((key,), f"`{key}` must be a table")
    return {**table, key: _with(inner, tuple(rest), value, origin)}
