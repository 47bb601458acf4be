"""Secrets of changefeeds: sealed where ZooKeeper keeps them, and put in the place of references where they are used.

**Sealed**: ``sink_uri`` and ``config`` of a changefeed's ``info`` node rest as one AES-256-GCM text, bound to the
changefeed, so that none can be moved to another. A key is derived (HKDF-SHA256) from each line of
``--secret-key-file``: the first seals, all open, so keys can be rotated. Child processes find the file by
TIDEBUS_SECRET_KEY_FILE. Who has a key takes no node in the clear, unless ``--accept-unsealed`` (for children
TIDEBUS_ACCEPT_UNSEALED) says so: whoever may write to ZooKeeper could send rows, and secrets by reference, anywhere.

**References** reach only what was meant for it: variables whose names begin with TIDEBUS_SECRET_, and files in the
folder that TIDEBUS_SECRET_DIR names. Else whoever may create changefeeds could read any file of the machine. They stand
only where a secret belongs (:mod:`schemas.config.parse.references`): else the API would show what is meant.
"""

import base64
import binascii
import functools
import json
import logging
import os
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from edges.secret_file import read_secret_lines
from schemas.config.changefeed import load_changefeed
from schemas.config.settings import ChangefeedConfig
from schemas.errors import Action, BusError
from schemas.masking import mask_uri
from schemas.nodes.changefeed import ChangefeedInfo, decode_changefeed_info, encode_changefeed_info

log = logging.getLogger(__name__)

KEY_FILE_VARIABLE: Final = "TIDEBUS_SECRET_KEY_FILE"
ACCEPT_VARIABLE: Final = "TIDEBUS_ACCEPT_UNSEALED"
FOLDER_VARIABLE: Final = "TIDEBUS_SECRET_DIR"
VARIABLE_PREFIX: Final = "TIDEBUS_SECRET_"
_OWN_VARIABLES: Final = frozenset({KEY_FILE_VARIABLE, ACCEPT_VARIABLE, FOLDER_VARIABLE})
_VERSION: Final = "v1"
_NONCE_BYTES: Final = 12
_SECRET_BYTES_MAX: Final = 64 << 10


class SecretKeyError(BusError):
    """A changefeed's settings are sealed, and none of the keys of --secret-key-file opens them."""

    code, action = "secrets.no_key", Action.STOP_CHANGEFEED


class UnsealedSettingsError(SecretKeyError):
    """A changefeed's settings rest in the clear, and this process has a key: anybody may have written them."""

    code = "secrets.unsealed"


class SecretReferenceError(BusError):
    """A ``${env:NAME}`` or ``${file:/path}`` names nothing that may be used as a secret here."""

    code, action = "secrets.reference", Action.STOP_CHANGEFEED


@dataclass(frozen=True, slots=True)
class Keyring:
    """Keys by which nodes are sealed; none: they rest in the clear."""

    keys: tuple[AESGCM, ...] = ()
    accepts_unsealed: bool = False
    """Read nodes in the clear, too; without a key they are read in any case."""

    @classmethod
    def read(cls, path: Path, *, accepts_unsealed: bool = False) -> "Keyring":
        """Read a key file.

        Raises:
            ConfigError: it cannot be used.
        """
        keys = tuple(_key(line.encode()) for line in read_secret_lines(path, "secret-key-file"))
        return cls(keys, accepts_unsealed)

    def encode(self, info: ChangefeedInfo) -> bytes:
        """Return an ``info`` node's bytes."""
        if not self.keys:
            if mask_uri(info.sink_uri) != info.sink_uri:
                log.warning(
                    "secrets rest in the clear; give --secret-key-file", extra={"changefeed": info.changefeed_id}
                )
            return encode_changefeed_info(info)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        inner = json.dumps({"sink_uri": info.sink_uri, "config": info.config}).encode()
        sealed = nonce + self.keys[0].encrypt(nonce, inner, _bound_to(info))
        node = json.loads(encode_changefeed_info(replace(info, sink_uri="", config={})))
        node["sealed"] = f"{_VERSION}:{base64.b64encode(sealed).decode()}"
        return json.dumps(node).encode()

    def decode(self, node: bytes) -> ChangefeedInfo:
        """Read an ``info`` node, sealed or not.

        Raises:
            UnsealedSettingsError: it is in the clear, and we have a key and do not accept that.
            SecretKeyError: none of the keys opens it, or it was sealed for another changefeed.
            CorruptDataError: it is none.
        """
        info = decode_changefeed_info(node)
        sealed = json.loads(node).get("sealed")
        where = {"changefeed": info.changefeed_id, "namespace": info.namespace}
        if sealed is None:
            if self.keys and not self.accepts_unsealed:
                raise UnsealedSettingsError(
                    "the settings are not sealed, so anybody may have written them; if they are yours, seal them: "
                    "tidebus cli unsafe seal-changefeeds",
                    **where,
                )
            return info
        version, _, text = str(sealed).partition(":")
        try:
            content = base64.b64decode(text, validate=True)
        except (ValueError, binascii.Error):
            content = b""
        if version != _VERSION or len(content) <= _NONCE_BYTES:
            raise SecretKeyError("the settings are sealed in a way that this version does not know", **where)
        nonce, rest = content[:_NONCE_BYTES], content[_NONCE_BYTES:]
        for key in self.keys:
            try:
                inner: dict[str, Any] = json.loads(key.decrypt(nonce, rest, _bound_to(info)))
                return replace(info, sink_uri=inner["sink_uri"], config=inner["config"])
            except InvalidTag:
                continue
        raise SecretKeyError(
            "the settings are sealed, and no key here opens them; give --secret-key-file", keys=len(self.keys), **where
        )

    def has_sealed(self, node: bytes) -> bool:
        """Tell whether an ``info`` node is sealed, and by the key that seals now."""
        try:
            replace(self, keys=self.keys[:1], accepts_unsealed=False).decode(node)
        except SecretKeyError:
            return False
        return bool(self.keys)


def encode_info(info: ChangefeedInfo) -> bytes:
    """Return an ``info`` node's bytes, sealed if this process has a key.

    Raises:
        ConfigError: the key file cannot be used.
    """
    return own_keyring().encode(info)


def decode_info(node: bytes) -> ChangefeedInfo:
    """Read an ``info`` node.

    Raises:
        UnsealedSettingsError: it is in the clear, and this process has a key.
        SecretKeyError: it is sealed, and this process has not the key.
        ConfigError: the key file cannot be used.
        CorruptDataError: it does not decode.
    """
    return own_keyring().decode(node)


def load_with_secrets(info: ChangefeedInfo) -> ChangefeedConfig:
    """Return a changefeed's settings for who connects: with secrets in place of references. They go to no node.

    Raises:
        SecretReferenceError: a reference names nothing.
        ConfigError: see :func:`schemas.config.changefeed.load_changefeed`.
    """
    return load_changefeed(info.sink_uri, info.config, resolve=resolve)


def resolve(kind: str, name: str) -> str:
    """Return the secret that a reference stands for.

    Raises:
        SecretReferenceError: there is none, or it may not be used.
    """
    where = {"reference": f"${{{kind}:{name[:200]}}}"}
    if kind == "env":
        if not name.startswith(VARIABLE_PREFIX) or name in _OWN_VARIABLES:
            raise SecretReferenceError(f"only variables that begin with {VARIABLE_PREFIX} are secrets", **where)
        if not (value := os.environ.get(name)):
            raise SecretReferenceError("there is no such variable where this process runs", **where)
        return value
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        raise SecretReferenceError(f"files are secrets only in the folder that {FOLDER_VARIABLE} names", **where)
    path = Path(folder, name).resolve()
    if not path.is_relative_to(Path(folder).resolve()):
        raise SecretReferenceError(f"the file is not in the folder that {FOLDER_VARIABLE} names", **where)
    try:
        with path.open("rb") as file:
            content = file.read(_SECRET_BYTES_MAX + 1)
        if len(content) > _SECRET_BYTES_MAX:
            raise SecretReferenceError("the file is too large for a secret", **where, bytes_max=_SECRET_BYTES_MAX)
        return content.decode().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise SecretReferenceError("the file cannot be read", **where, reason=reason) from None


def own_keyring() -> Keyring:
    """Return this process's keys, as their file is now.

    Raises:
        ConfigError: the key file cannot be used.
    """
    path = os.environ.get(KEY_FILE_VARIABLE, "")
    if not path:
        return Keyring()
    try:
        stands = Path(path).stat()
        edition = (stands.st_ino, stands.st_mtime_ns, stands.st_size)
    except OSError:
        edition = (0, 0, 0)
    return _keyring(path, edition, os.environ.get(ACCEPT_VARIABLE, "") == "1")


@functools.lru_cache(maxsize=4)
def _keyring(path: str, edition: tuple[int, int, int], accepts_unsealed: bool) -> Keyring:
    return Keyring.read(Path(path), accepts_unsealed=accepts_unsealed)


def _key(line: bytes) -> AESGCM:
    return AESGCM(HKDF(SHA256(), 32, salt=None, info=b"tidebus changefeed settings v1").derive(line))


def _bound_to(info: ChangefeedInfo) -> bytes:
    parts = (info.namespace.encode(), info.changefeed_id.encode(), info.upstream.encode())
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)
