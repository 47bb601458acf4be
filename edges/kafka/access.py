"""How a Kafka cluster is reached: its servers, and how we show who we are."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from edges.kafka.settings import CHECK_BATCHES, FLAGS, KAFKA_KEYS, MECHANISMS, NUMBERS, PEM_FILES, PROTOCOLS, SERVERS
from edges.properties import read_properties
from schemas.errors import ConfigError

_SASL = "SASL_"
_USER_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_OIDC_KEYS = ("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret", "sasl.oauthbearer.token.endpoint.url")


@dataclass(frozen=True, slots=True)
class KafkaAccess:
    """Plain data, which tasks on other machines get in their closure; no repr shows more than the servers.

    Made by :meth:`read` from the command line. One without settings reaches a cluster that asks for nothing.
    """

    servers: str
    """``host:port``, several by comma."""
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    """librdkafka's, checked; secrets are in clear, so it is for a client and for nobody's log."""
    config_file: str = ""
    """Where :meth:`read` has found them, for child processes."""

    @classmethod
    def read(cls, servers: str, config_file: Path | None = None) -> Self:
        """Return the access that ``--kafka`` and ``--kafka-config`` name; ``bootstrap.servers`` of the file goes first.

        Raises:
            ConfigError: the file is refused, its settings do not fit each other, or no server is named.
        """
        if config_file is None:
            return cls(servers)
        given = read_properties(config_file, KAFKA_KEYS)
        settings = check_settings(given, file=str(config_file))
        servers = settings.pop(SERVERS, servers)
        if not servers:
            raise ConfigError("no Kafka broker is named; give --kafka, or bootstrap.servers in --kafka-config")
        return cls(servers, settings, str(config_file.resolve()))

    def config(self) -> dict[str, str]:
        """Return what every client of this cluster is made with; a caller adds what its own work needs."""
        return {**self.settings, SERVERS: self.servers}

    def with_texts(self) -> Self:
        """Return this access with the texts of PEM files instead of their names, as processes elsewhere need it.

        Raises:
            ConfigError: one is not readable.
        """
        settings = dict(self.settings)
        for key, text_key in PEM_FILES.items():
            file = settings.pop(key, None)
            if file is not None:
                settings[text_key] = read_pem(file, key)
        return replace(self, settings=settings)

    def checking_batches(self) -> Self:
        """Return this access for consumers that compare Kafka's checksum of each batch, whatever its records say of
        themselves (:func:`edges.kafka.offsets.offsets_consumer`).
        """
        return replace(self, settings={**self.settings, CHECK_BATCHES: "true"})

    def as_child(self, config_file: Path | None) -> Self | None:
        """Return the access of a child process that has a ``--kafka-config`` of its own; None: it has this one.

        Raises:
            ConfigError: see :meth:`read`.
        """
        return None if config_file is None else type(self).read(self.servers, config_file)

    def arguments(self) -> list[str]:
        """Return the options that give a child process the same access: no secret is among them."""
        named = ["--kafka", self.servers] if self.servers else []
        return [*named, "--kafka-config", self.config_file] if self.config_file else named

    def __bool__(self) -> bool:
        return bool(self.servers)

    def __str__(self) -> str:
        return self.servers


def check_settings(settings: Mapping[str, str], *, file: str = "") -> dict[str, str]:
    """Return settings of known keys in one form (``sasl.mechanism``, upper-case names), having checked that they fit.

    Raises:
        ConfigError: a value is none of its key's, or one needs another that is not there.
    """
    checked = dict(settings)
    if "sasl.mechanisms" in checked:  # librdkafka's older name of the same
        mechanism = checked.pop("sasl.mechanisms")
        if checked.setdefault("sasl.mechanism", mechanism) != mechanism:
            raise _refusal("sasl.mechanism and sasl.mechanisms differ", "sasl.mechanisms", file)
    for key in ("security.protocol", "sasl.mechanism"):
        if key in checked:
            checked[key] = checked[key].upper()
    _check_forms(checked, file)
    protocol = checked.get("security.protocol", "PLAINTEXT")
    _check_fit(checked, protocol, file)
    if protocol.startswith(_SASL):
        _check_sasl(checked, file)
    return checked


def _check_forms(settings: Mapping[str, str], file: str) -> None:
    allowed = {
        "security.protocol": PROTOCOLS,
        "sasl.mechanism": MECHANISMS,
        "sasl.oauthbearer.method": ("default", "oidc"),
        "ssl.endpoint.identification.algorithm": ("https", "none"),
        "broker.address.family": ("any", "v4", "v6"),
        "client.dns.lookup": ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
        **dict.fromkeys(FLAGS, ("true", "false")),
    }
    for key, values in allowed.items():
        if key in settings and settings[key] not in values:
            raise _refusal("setting has no such value", key, file, allowed=", ".join(values))
    for key in NUMBERS:
        if key in settings and not re.fullmatch(r"\d{1,9}", settings[key]):
            raise _refusal("setting is not a number of milliseconds", key, file)
    for key, value in settings.items():
        if not value:
            raise _refusal("setting has no value", key, file)


def _check_fit(settings: Mapping[str, str], protocol: str, file: str) -> None:
    """Refuse what would stay without effect: who writes it believes that the connection is safer than it is."""
    for key in settings:
        needs_tls = key.startswith(("ssl.", "enable.ssl."))
        if needs_tls and not protocol.endswith("SSL"):
            raise _refusal("setting is of use with security.protocol SSL or SASL_SSL only", key, file)
        if key.startswith(("sasl.", "enable.sasl.")) and not protocol.startswith(_SASL):
            raise _refusal("setting is of use with security.protocol SASL_PLAINTEXT or SASL_SSL only", key, file)
    for key in ("https.ca.location", "https.ca.pem"):
        if key in settings and settings.get("sasl.oauthbearer.method") != "oidc":
            raise _refusal("setting is of use with sasl.oauthbearer.method=oidc only", key, file)
    for key, text_key in PEM_FILES.items():
        if key in settings and text_key in settings:
            raise _refusal(f"give a file or its text, not {key} and {text_key}", key, file)
    certificate, private_key = (
        any(f"ssl.{what}.{how}" in settings for how in ("location", "pem")) for what in ("certificate", "key")
    )
    if certificate != private_key:
        raise _refusal(
            "a certificate and its key are given together",
            "ssl.key.location" if certificate else "ssl.certificate.location",
            file,
        )
    if certificate and "ssl.keystore.location" in settings:
        raise _refusal("give a certificate and key, or a key store, not both", "ssl.keystore.location", file)


def _check_sasl(settings: Mapping[str, str], file: str) -> None:
    mechanism = settings.get("sasl.mechanism")
    if mechanism is None:
        raise _refusal(f"SASL needs a mechanism: {', '.join(MECHANISMS)}", "sasl.mechanism", file)
    user_keys = ("sasl.username", "sasl.password")
    if mechanism in _USER_MECHANISMS:
        _check_needed(settings, user_keys, mechanism, file)
        for key in settings:
            if "oauthbearer" in key:
                raise _refusal(f"setting is of no use with {mechanism}", key, file)
        return
    for key in user_keys:
        if key in settings:
            raise _refusal("setting is of no use with OAUTHBEARER", key, file)
    if settings.get("sasl.oauthbearer.method") == "oidc":
        _check_needed(settings, _OIDC_KEYS, "sasl.oauthbearer.method=oidc", file)
    elif settings.get("enable.sasl.oauthbearer.unsecure.jwt") != "true":
        # librdkafka would ask the program for a token, and wait for it without an end.
        raise _refusal(
            "OAUTHBEARER needs sasl.oauthbearer.method=oidc, or enable.sasl.oauthbearer.unsecure.jwt=true for tests",
            "sasl.oauthbearer.method",
            file,
        )


def _check_needed(settings: Mapping[str, str], keys: tuple[str, ...], by: str, file: str) -> None:
    for key in keys:
        if key not in settings:
            raise _refusal(f"{by} needs this setting", key, file)


def read_pem(file: str, key: str) -> str:
    """Return a PEM file's text; ``key`` is the setting that names it.

    Raises:
        ConfigError: it is not readable as text.
    """
    try:
        return Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error if isinstance(error, OSError) else type(error).__name__
        raise ConfigError("file is not readable", key=key, file=file, reason=reason) from None


def _refusal(message: str, key: str, file: str, **more: object) -> ConfigError:
    where = {"file": file} if file else {}
    return ConfigError(message, key=key, **where, **more)
