"""How a schema registry with the API of Confluent is reached."""

import urllib.parse
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

    @classmethod
    def read(cls, url: str, config_file: Path | None = None) -> Self:
        """Return the access of ``--schema-registry`` and ``--schema-registry-config``; the file's url goes first.

        Raises:
            ConfigError: the file is refused, or the URL is none.
        """
        given = read_properties(config_file, REGISTRY_KEYS) if config_file is not None else {}
        access = cls.at(given.get("url", url))
        if config_file is None:
            return access
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

    def __bool__(self) -> bool:
        return bool(self.url)

    def __str__(self) -> str:
        return self.url

    def arguments(self) -> list[str]:
        """Return the options that give a child process the same access, with :meth:`environment`: no secret is here."""
        named = ["--schema-registry", self.url] if self.url and not self.url_with_user else []
        return [*named, "--schema-registry-config", self.config_file] if self.config_file else named

    def environment(self) -> dict[str, str]:
        """Return what a child needs beside :meth:`arguments`, which everybody on the machine sees."""
        return {URL_ENV: self.url_with_user} if self.url_with_user else {}

    def client(self, **more: Any) -> Any:
        """Return Confluent's client; ``more`` are its settings, with ``_`` for ``.``.

        It is imported here: that costs as much as half of a sorter, and most sorters have no registry.

        Raises:
            ConfigError: a file of TLS cannot be used.
        """
        check_tls_files(*(dict(self.settings).get(key, "") for key in _TLS_KEYS))
        from confluent_kafka.schema_registry import SchemaRegistryClient

        config: dict[str, Any] = {"url": self.url, **dict(self.settings)}
        if self.user_info:
            config[_USER_INFO] = self.user_info
        return SchemaRegistryClient(config | {key.replace("_", "."): value for key, value in more.items()})
