"""URIs of storages, with TiCDC's parameters, and what must be told to who opens them.

Sources: PingCAP's docs, "URI Formats of External Storage Services", and pingcap/tidb ``pkg/objstore`` for defaults.
"""

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from schemas.config.sink.storage_hosts import check_who_asks
from schemas.masking import is_secret_name, without

_LOCAL = ("file", "local")
_S3_BUCKET_HELP = "must be s3://bucket or s3://bucket/prefix"
OTHER_STORAGES = ("ks3", "hdfs", "noop")
"""Schemes that TiCDC takes and we do not yet."""

_KEY_BYTES = 32
Options = dict[str, Any]
_Put = Callable[[Options, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageUri:
    """A storage that files are written to."""

    public: str
    """The URI without parameters, and without a ``/`` at its end: what may be shown and sent."""
    protocol: str
    """Who keeps it: file, s3, gs or az."""
    root: str
    """The folder there: an absolute path, or bucket and prefix; without a ``/`` at its end."""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """For who opens it; credentials are among them. Of s3 fsspec's own, and ``role``: ``arn`` and ``external_id``."""
    unread: tuple[str, ...] = ()
    """Names of parameters that nobody reads."""
    idle: tuple[tuple[str, str], ...] = ()
    """Names of TiCDC's parameters that change nothing here, and why."""

    def masked(self, text: str) -> str:
        """Return a text, such as a client library's error, without this URI's secrets."""
        return without(text, _secrets_of(self.options))

    @property
    def is_local(self) -> bool:
        return self.protocol == "file"

    @property
    def extra(self) -> str:
        """Which extra of this package installs its client."""
        return {"az": "azure", "gs": "gcs"}.get(self.protocol, self.protocol)


def _secrets_of(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _secrets_of(value)
        elif isinstance(value, str) and (name == "key" or is_secret_name(name)):
            yield value
            if name == "encryption_key":
                yield b64encode(value.encode()).decode()  # as it is sent
            if name == "sas_token":
                yield from (secret for part, secret in parse_qsl(value.replace("+", "%2B")) if is_secret_name(part))


def parse_storage_uri(uri: str) -> StorageUri:
    """Read a storage's URI.

    Raises:
        ValueError: it is none of ours; the text says what it must be, and names no value of a parameter.
    """
    try:
        parts = urlsplit(uri)
    except ValueError:  # its text shows the host, and what may be a password before it
        text = "is no URI that can be read: its host has a lone bracket, or a sign that is none of a host's"
        raise ValueError(text) from None
    scheme = parts.scheme.lower()
    if scheme in _LOCAL:
        if parts.netloc or not parts.path.startswith("/") or parts.fragment:
            raise ValueError("must be file:///path, an absolute path and nothing else")
        public, root = uri.partition("?")[0].removesuffix("/"), unquote(parts.path).rstrip("/") or "/"
        others = tuple(f"`{name}`" for name, _ in parse_qsl(parts.query))
        return StorageUri(public=public, protocol="file", root=root, unread=others)
    if scheme not in _REMOTE:
        raise ValueError("must be file:///path, s3://bucket/prefix, gs://bucket/prefix or azure://container/prefix")
    if not parts.netloc or "@" in parts.netloc or parts.fragment:
        raise ValueError(_S3_BUCKET_HELP.replace("s3", scheme))
    protocol, defaults, parameters = _REMOTE[scheme]
    options = _copied(defaults)
    unread: list[str] = []
    idle: list[tuple[str, str]] = []
    # A `+` stands for itself, as in the secrets that S3 gives out: no parameter here holds a blank.
    for name, value in parse_qsl(parts.query.replace("+", "%2B"), keep_blank_values=True):
        plain = name.lower().replace("_", "-")
        put = parameters.get(plain)
        if protocol == "s3" and plain in _IDLE_S3:
            idle.append((plain, _IDLE_S3[plain]))
            continue
        if put is None:
            unread.append(f"`{name}`" if value else "a parameter without value")
            continue
        put(options, value)
    if "role" in options and "arn" not in options["role"]:
        raise ValueError("has the parameter external-id without role-arn")
    _check_encryption(options)
    check_who_asks(protocol, options)
    path = unquote(parts.path).strip("/")
    root = f"{parts.netloc}/{path}" if path else parts.netloc
    public = f"{parts.scheme}://{root}"
    return StorageUri(
        public=public, protocol=protocol, root=root, options=options, unread=tuple(unread), idle=tuple(idle)
    )


def other_storage(uri: str) -> str | None:
    """Return the scheme of a storage that TiCDC takes and we do not yet."""
    scheme = uri.partition(":")[0].lower()
    return scheme if scheme in OTHER_STORAGES else None


def _to(*path: str) -> _Put:
    """Return what puts a parameter's value there; an empty one is none, as in TiCDC."""

    def put(options: Options, value: str) -> None:
        if not value:
            return
        for key in path[:-1]:
            options = options.setdefault(key, {})
        options[path[-1]] = value

    return put


def _addressing(options: Options, value: str) -> None:
    word = value.lower()
    if word not in ("true", "false", "1", "0", ""):
        raise ValueError("has force-path-style that is neither true nor false")
    style = "virtual" if word in ("false", "0") else "path"
    options.setdefault("config_kwargs", {}).setdefault("s3", {})["addressing_style"] = style


def _accelerated(options: Options, value: str) -> None:
    word = value.lower()
    if word not in ("true", "false", "1", "0", ""):
        raise ValueError("has use-accelerate-endpoint that is neither true nor false")
    if word in ("true", "1"):
        s3 = options.setdefault("config_kwargs", {}).setdefault("s3", {})
        s3.update(use_accelerate_endpoint=True, addressing_style="virtual")


def _endpoint(suffix: str = "") -> _Put:
    """Return what puts an endpoint there: without ``/`` at its end, and without what every address of that API has."""

    def put(options: Options, value: str) -> None:
        if not value:
            return
        try:
            parts = urlsplit(value if "://" in value else f"https://{value}")
        except ValueError:  # its text shows the host
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.netloc or "@" in parts.netloc:
            raise ValueError("has an endpoint that is no https://host")
        if parts.query or parts.fragment:
            raise ValueError("has an endpoint with parameters; they belong to the storage, such as sas-token")
        options["endpoint"] = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix(suffix)}"

    return put


def _access_tier(options: Options, value: str) -> None:
    if not value:
        return
    tier = value.lower().capitalize()
    if tier == "Archive":
        raise ValueError("has access-tier Archive: a file there cannot be read, and a changefeed reads its own again")
    if tier not in ("Hot", "Cool", "Cold"):
        raise ValueError("has access-tier that is none of Hot, Cool and Cold")
    options["access_tier"] = tier


def _encryption_key(options: Options, value: str) -> None:
    if value and len(value.encode()) != _KEY_BYTES:
        raise ValueError(f"has encryption-key that is not {_KEY_BYTES} bytes long, as AES-256 wants it")
    _to("encryption_key")(options, value)


def _sas_token(options: Options, value: str) -> None:
    _to("sas_token")(options, value.removeprefix("?"))


def _check_encryption(options: Options) -> None:
    key, scope = "encryption_key" in options, "encryption_scope" in options
    if (key or scope) and "access_tier" in options:
        raise ValueError("has access-tier, which excludes encryption-scope and encryption-key")
    if key and scope:
        raise ValueError("has encryption-scope, which excludes encryption-key")


def _copied(options: Mapping[str, Any]) -> Options:
    return {key: _copied(value) if isinstance(value, Mapping) else value for key, value in options.items()}


_S3: dict[str, _Put] = {
    "access-key": _to("key"),
    "secret-access-key": _to("secret"),
    "session-token": _to("token"),
    "endpoint": _to("endpoint_url"),
    "region": _to("client_kwargs", "region_name"),
    "force-path-style": _addressing,
    "sse": _to("s3_additional_kwargs", "ServerSideEncryption"),
    "sse-kms-key-id": _to("s3_additional_kwargs", "SSEKMSKeyId"),
    "acl": _to("s3_additional_kwargs", "ACL"),
    "storage-class": _to("s3_additional_kwargs", "StorageClass"),
    "role-arn": _to("role", "arn"),
    "external-id": _to("role", "external_id"),
    "profile": _to("profile"),
    "use-accelerate-endpoint": _accelerated,
}
_IDLE_S3 = {
    "provider": "every provider is spoken to in the same way",
    "object-lock-enabled": "it asks for checksums, which the client always sends",
}
_S3_DEFAULTS: Options = {"config_kwargs": {"s3": {"addressing_style": "path"}}}
"""TiDB addresses a bucket by path unless ``force-path-style=false``."""
_GCS: dict[str, _Put] = {
    "credentials-file": _to("credentials_file"),
    "endpoint": _endpoint("/storage/v1"),
    "storage-class": _to("storage_class"),
    "predefined-acl": _to("predefined_acl"),
}
_AZURE: dict[str, _Put] = {
    "account-name": _to("account_name"),
    "account-key": _to("account_key"),
    "sas-token": _sas_token,
    "endpoint": _endpoint(),
    "access-tier": _access_tier,
    "encryption-scope": _to("encryption_scope"),
    "encryption-key": _encryption_key,
}
_REMOTE: dict[str, tuple[str, Options, dict[str, _Put]]] = {
    "s3": ("s3", _S3_DEFAULTS, _S3),
    "gcs": ("gs", {}, _GCS),
    "gs": ("gs", {}, _GCS),
    "azure": ("az", {}, _AZURE),
    "azblob": ("az", {}, _AZURE),
}
