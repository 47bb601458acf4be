"""How a schema registry with the API of Confluent is reached."""

import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

from edges.properties import KnownKeys, read_properties
from edges.tls_files import check_tls_files
from schemas.config.parse.secret import is_url
from schemas.errors import ConfigError
from schemas.masking import mask_uri

_TLS_KEYS: Final = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.key.password")
URL_ENV: Final = "TIDEBUS_SCHEMA_REGISTRY"
"""The variable of ``--schema-registry``."""
_USER_INFO: Final = "basic.auth.user.info"
REGISTRY_KEYS: Final = KnownKeys(
    option="--schema-registry-config",
    allowed=frozenset({"url", _USER_INFO, *_TLS_KEYS}),
    secret=frozenset({_USER_INFO, "ssl.key.password"}),
    paths=frozenset(_TLS_KEYS[:3]),
)
SINK_REGISTRY_KEYS: Final = replace(REGISTRY_KEYS, option="--sink-registry-config")


@dataclass(frozen=True, slots=True)
class RegistryAccess:
    """Plain data; neither ``str`` nor ``repr`` shows a secret, so both may be logged. Made by :meth:`read`."""

    url: str = ""
    """Without user and password; empty: there is no registry."""
    user_info: str = field(default="", repr=False)
    """``user:password`` of basic authentication."""
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """TLS, in the words of Confluent's client."""
    config_file: str = ""
    """Where :meth:`read` has found it, for child processes."""
    url_with_user: str = field(default="", repr=False)
    """The URL as it was given, where it names a user."""
    sinks: tuple["RegistryAccess", ...] = field(default=(), repr=False)
    """Registries that changefeeds may name, each by its URL; see :meth:`of_changefeed`."""

    @classmethod
    def read(cls, url: str, config_file: Path | None = None, sink_files: Sequence[Path] = ()) -> Self:
        """Return the access of ``--schema-registry`` and ``--schema-registry-config``; the file's url goes first.

        ``sink_files`` are those of ``--sink-registry-config``.

        Raises:
            ConfigError: a file is refused, the URL is none, or two files are of one registry.
        """
        access = cls._of_file(url, config_file, REGISTRY_KEYS) if config_file is not None else cls.at(url)
        sinks: dict[str, RegistryAccess] = {}
        for file in sink_files:
            sink = cls._of_file("", file, SINK_REGISTRY_KEYS)
            where = {"key": SINK_REGISTRY_KEYS.option, "file": file}
            if not sink:
                raise ConfigError("the file must name its registry by url", **where)
            if sinks.setdefault(sink.canonical_url, sink) is not sink:
                raise ConfigError("another file is of the same registry", **where, url=sink.url)
        return replace(access, sinks=tuple(sinks.values()))

    @classmethod
    def _of_file(cls, url: str, config_file: Path, keys: KnownKeys) -> Self:
        given = read_properties(config_file, keys)
        access = cls.at(given.get("url", url))
        where = {"file": config_file}
        for key, value in given.items():
            if not value:
                raise ConfigError("setting has no value", key=key, **where)
        if access.user_info and _USER_INFO in given:
            raise ConfigError("the user is given twice, in the URL and by this setting", key=_USER_INFO, **where)
        if ("ssl.certificate.location" in given) != ("ssl.key.location" in given):
            raise ConfigError("a certificate and its key are given together", key="ssl.key.location", **where)
        settings = tuple((key, given[key]) for key in _TLS_KEYS if key in given)
        user_info = given.get(_USER_INFO, access.user_info)
        return replace(access, user_info=user_info, settings=settings, config_file=str(config_file.resolve()))

    @classmethod
    def at(cls, url: str) -> Self:
        """Return the access of a URL that may hold ``user:password@``; empty: there is no registry.

        Raises:
            ConfigError: not an http or https URL with a host.
        """
        if not url:
            return cls()
        if not is_url(url):
            raise ConfigError("schema-registry must be an http or https URL", key="schema-registry", url=mask_uri(url))
        parts = urllib.parse.urlsplit(url)
        user_info = ""
        if parts.username is not None:
            user_info = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        bare = parts._replace(netloc=parts.netloc.rsplit("@", 1)[-1]).geturl()
        return cls(bare, user_info, url_with_user=url if user_info else "")

    def of_changefeed(self, url: str) -> "RegistryAccess":
        """Return the access of the registry that a changefeed names; ``url`` may hold ``user:password@``; empty: ours.

        A registry's file gives TLS and a user; a user of the changefeed's own goes before. The files are of exactly
        their URL: neither certificate nor user is shown to another host, port or path.

        Raises:
            ConfigError: not an http or https URL with a host.
        """
        if not url:
            return replace(self, sinks=())
        named = type(self).at(url)
        for known in (*self.sinks, self):
            if known and known.canonical_url == named.canonical_url:
                return replace(known, user_info=named.user_info or known.user_info, sinks=())
        return named

    @property
    def canonical_url(self) -> str:
        """The URL in the form by which two are compared."""
        parts = urllib.parse.urlsplit(self.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return f"{parts.scheme}://{parts.hostname}:{port}{parts.path.rstrip('/')}"

    def __bool__(self) -> bool:
        return bool(self.url)

    def __str__(self) -> str:
        return self.url

    def arguments(self) -> list[str]:
        """Return the options that give a child process the same access, with :meth:`environment`: no secret is here."""
        named = ["--schema-registry", self.url] if self.url and not self.url_with_user else []
        named += ["--schema-registry-config", self.config_file] if self.config_file else []
        return named + [part for sink in self.sinks for part in (SINK_REGISTRY_KEYS.option, sink.config_file)]

    def environment(self) -> dict[str, str]:
        """Return what a child needs beside :meth:`arguments`, which everybody on the machine sees."""
        return {URL_ENV: self.url_with_user} if self.url_with_user else {}

    def client(self, **more: object) -> Any:
        """Return Confluent's client; ``more`` are its settings, with ``_`` for ``.``.

        It is imported here: that costs as much as half of a sorter, and most sorters have no registry.

        Raises:
            ConfigError: a file of TLS cannot be used.
        """
        check_tls_files(*(dict(self.settings).get(key, "") for key in _TLS_KEYS))
        from confluent_kafka.schema_registry import SchemaRegistryClient

        config: dict[str, object] = {"url": self.url, **dict(self.settings)}
        if self.user_info:
            config[_USER_INFO] = self.user_info
        return SchemaRegistryClient(config | {key.replace("_", "."): value for key, value in more.items()})
