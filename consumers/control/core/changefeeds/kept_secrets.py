"""Which stored secrets a change of a changefeed would send elsewhere, though nobody has given them again.

Who may change a changefeed is shown no secret of it, and may keep them: by a mask, or by changing something else. With
another host, or with TLS that proves no name, that would be as good as showing them.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from schemas.config.parse.origin import Path, dotted
from schemas.config.parse.section import fields_by_key
from schemas.config.settings import ChangefeedConfig, ChangefeedFile
from schemas.config.sink.iceberg import ICEBERG_PATH
from schemas.config.sink.kafka import KAFKA_PATH
from schemas.config.sink.mysql import MYSQL_PATH
from schemas.masking import is_secret_name, mask_setting, mask_uri

SINK_URI: Final = "sink-uri"
_TLS: Final = (*KAFKA_PATH, "enable-tls")
_WAREHOUSE: Final = (*ICEBERG_PATH, "warehouse")


@dataclass(frozen=True, slots=True)
class SecretGroup:
    """Secrets that go to the same servers."""

    secrets: tuple[Path, ...]
    """Settings that hold them."""
    whereto: tuple[Path, ...]
    """Settings that say to whom, and how it is proven who that is; the sink URI's scheme and hosts say so too."""


def _group(path: Path, secrets: tuple[str, ...], whereto: tuple[str, ...]) -> SecretGroup:
    return SecretGroup(tuple((*path, name) for name in secrets), tuple((*path, name) for name in whereto))


_KAFKA: Final = _group(
    KAFKA_PATH,
    ("sasl-password", "sasl-gssapi-password", "sasl-oauth-client-secret"),
    (
        *("enable-tls", "ca", "insecure-skip-verify", "sasl-mechanism", "sasl-oauth-token-url"),
        *("sasl-gssapi-service-name", "sasl-gssapi-realm", "sasl-gssapi-kerberos-config-path"),
    ),
)
_DATABASE: Final = _group(MYSQL_PATH, (), ("ssl-ca", "allow-public-key-retrieval"))
_CATALOG: Final = _group(
    ICEBERG_PATH, ("catalog-password", "catalog-token"), ("catalog", "catalog-uri", "catalog-oauth2-server-uri")
)
_S3: Final = _group(
    ICEBERG_PATH,
    ("s3-access-key", "s3-secret-access-key"),
    # A REST catalog tells its clients at which endpoint its tables are.
    ("s3-endpoint", "s3-region", "warehouse", "catalog", "catalog-uri"),
)
_GLUE: Final = _group(
    (*KAFKA_PATH, "glue-schema-registry-config"),
    ("access-key", "secret-access-key", "token"),
    ("region", "registry-name"),
)
SECRET_GROUPS: Final = (_KAFKA, _CATALOG, _S3, _GLUE)
"""A setting that is a URI with secrets in it is in none: it says itself where they go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedSettings:
    """Settings of a changefeed, as they are stored and as they were read."""

    sink_uri: str = field(repr=False)
    table: Mapping[str, Any] = field(repr=False)
    config: ChangefeedConfig | None
    """None: they are not allowed any more."""


@dataclass(frozen=True, slots=True)
class Misdirected:
    """What would go elsewhere."""

    secrets: tuple[str, ...]
    """Settings that hold it, or the sink URI."""
    by: tuple[str, ...]
    """Settings whose change does it, or the sink URI."""


def misdirected(
    before: FeedSettings, after: FeedSettings, kept: Collection[Path], *, keeps_uri: bool
) -> Misdirected | None:
    """Return which secrets a change would send elsewhere, by their settings; None: none.

    Args:
        before, after: the settings without and with the change; the latter are allowed.
        kept: settings whose value is the stored one, and that nobody has given again.
        keeps_uri: the sink URI is the stored one, likewise.
    """
    secrets: list[str] = []
    by: dict[str, None] = {}
    if keeps_uri and mask_uri(before.sink_uri) != before.sink_uri:
        changed = [name for group in _groups_of_uri(after) for name in _changed(group, before, after)]
        secrets += [SINK_URI] if changed else []
        by |= dict.fromkeys(changed)
    for path in sorted(kept, key=dotted):
        if not is_secret_name(str(path[-1])):
            continue
        # A secret of no group is as good as one whose server is the sink.
        group = next((group for group in SECRET_GROUPS if path in group.secrets), SecretGroup((path,), ()))
        if changed := _changed(group, before, after):
            secrets.append(dotted(path))
            by |= dict.fromkeys(changed)
    return Misdirected(tuple(secrets), tuple(by)) if secrets else None


def secret_paths(table: Mapping[str, Any], path: Path = ()) -> Iterator[Path]:
    """Yield the settings of a changefeed file's table that hold secrets: by their names, or in a URI."""
    for key, value in table.items():
        here = (*path, key)
        if isinstance(value, Mapping):
            yield from secret_paths(value, here)
        elif isinstance(value, str) and (is_secret_name(key) or mask_setting(key, value) != value):
            yield here


def value_at(table: Mapping[str, Any], path: Path) -> Any:
    """Return a table's value at a path; None: there is none."""
    value: Any = table
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _groups_of_uri(settings: FeedSettings) -> tuple[SecretGroup, ...]:
    """Return what says beside a sink URI where the secrets in it go."""
    config = settings.config
    if config is None:
        return (_KAFKA, _DATABASE, _CATALOG, _S3)
    if config.uri.server is not None:
        return (_DATABASE,)
    if config.uri.is_lake:
        return (_CATALOG, _S3)
    return (_KAFKA,) if config.uri.brokers else ()


def _changed(group: SecretGroup, before: FeedSettings, after: FeedSettings) -> list[str]:
    """Return what is another one of what says where a group's secrets go."""
    old, new = before.config, after.config
    if old is None or new is None:  # what cannot be read is compared as it is written
        names = [SINK_URI] if before.sink_uri != after.sink_uri else []
        return names + [
            dotted(path) for path in group.whereto if value_at(before.table, path) != value_at(after.table, path)
        ]
    names = [SINK_URI] if _address(old) != _address(new) else []
    return names + [dotted(path) for path in group.whereto if _setting(old, path) != _setting(new, path)]


def _address(config: ChangefeedConfig) -> tuple[object, ...]:
    uri = config.uri
    server = None if uri.server is None else (uri.server.host, uri.server.port)
    return uri.scheme, frozenset(uri.brokers), server


def _setting(config: ChangefeedConfig, path: Path) -> object:
    """Return a setting's value, as far as it says where secrets go."""
    if path == _TLS:
        return config.tls
    if path == _WAREHOUSE:
        return urlsplit(config.sink.iceberg.warehouse).netloc  # the bucket
    value: Any = config
    kind: Any = ChangefeedFile
    for key in path:
        value = getattr(value, fields_by_key(kind)[str(key)][0].name)
        if value is None:
            return None
        kind = type(value)
    return value
