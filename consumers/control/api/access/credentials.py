"""Who may ask the API: a file of users and passwords, which servers check against and the command line takes from.

TOML. ``[scrypt]`` holds ``name = "n,r,p,salt,hash"`` (RFC 7914; salt and hash in base64): all that a server needs.
``[users]`` holds ``name = "password"``, which the command line sends; a server takes it too, and says how to convert
it. A file that others can read is refused.
"""

import base64
import binascii
import hashlib
import hmac
import json
import logging
import os
import secrets
import threading
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from edges.secret_file import read_secret_text
from schemas.errors import BusError, ConfigError

log = logging.getLogger(__name__)

_N, _R, _P, _SALT_BYTES, _HASH_BYTES = 1 << 14, 8, 1, 16, 32
"""16 MiB and some 30 ms a check (OWASP's least for scrypt is 2^14 with p = 5; the door slows who guesses down)."""
_N_MAX, _RP_MAX = 1 << 18, 64


class Users(Protocol):
    """Who may ask."""

    @property
    def edition(self) -> object:
        """Another object once it has changed."""

    def allow(self, user: str, password: str) -> bool:
        """Tell whether the password is the user's."""


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """A password's scrypt with a salt of its own."""

    n: int
    r: int
    p: int
    salt: bytes = field(repr=False)
    digest: bytes = field(repr=False)

    @classmethod
    def of(cls, password: str) -> "PasswordHash":
        """Return a password's, with a new salt."""
        made = cls(_N, _R, _P, secrets.token_bytes(_SALT_BYTES), b"")
        return cls(made.n, made.r, made.p, made.salt, made._digest_of(password, _HASH_BYTES))

    @classmethod
    def parse(cls, text: str) -> "PasswordHash":
        """Read its text form.

        Raises:
            ValueError: it is none, or one that would take too long.
        """
        n, r, p, salt, digest = text.split(",")
        parsed = cls(int(n), int(r), int(p), base64.b64decode(salt, validate=True), base64.b64decode(digest))
        is_power = parsed.n > 1 and parsed.n & (parsed.n - 1) == 0
        if not is_power or parsed.n > _N_MAX or not 1 <= parsed.r * parsed.p <= _RP_MAX or len(parsed.digest) < 16:
            raise ValueError("parameters of scrypt are out of bounds")
        return parsed

    def __str__(self) -> str:
        salt, digest = (base64.b64encode(part).decode() for part in (self.salt, self.digest))
        return f"{self.n},{self.r},{self.p},{salt},{digest}"

    def fits(self, password: str) -> bool:
        """Tell whether it is this password's."""
        return hmac.compare_digest(self._digest_of(password, len(self.digest)), self.digest)

    def _digest_of(self, password: str, size: int) -> bytes:
        memory = 256 * self.n * self.r
        return hashlib.scrypt(
            password.encode(), salt=self.salt, n=self.n, r=self.r, p=self.p, maxmem=memory, dklen=size
        )


@dataclass(frozen=True, slots=True)
class Credentials:
    """Users with their passwords, or with what is kept of them."""

    users: Mapping[str, str] = field(repr=False)
    hashes: Mapping[str, PasswordHash] = field(default_factory=dict, repr=False)

    @property
    def edition(self) -> object:
        """See :class:`Users`."""
        return self

    def allow(self, user: str, password: str) -> bool:
        """Tell whether the password is the user's. How long it takes says neither who there is nor how far they agree.

        Digests are compared, so that lengths do not show; a user who is unknown is compared, too.
        """
        if self.hashes:
            kept = self.hashes.get(user)
            fits = (kept or next(iter(self.hashes.values()))).fits(password)
            if kept is not None:
                return fits
        known = self.users.get(user)
        same = hmac.compare_digest(_digest(known or ""), _digest(password))
        return same and known is not None


class CredentialsFile:
    """A server's users: a file that is read again when it has changed. One that cannot be used leaves things as they
    were."""

    def __init__(self, path: Path) -> None:
        """Read it.

        Raises:
            ConfigError: see :func:`read_credentials`.
        """
        self._path, self._lock = path, threading.Lock()
        self._seen = _identity(path)
        self._credentials = read_credentials(path)
        self._tell()

    @property
    def edition(self) -> object:
        """See :class:`Users`."""
        return self._current()

    def allow(self, user: str, password: str) -> bool:
        """See :class:`Users`."""
        return self._current().allow(user, password)

    def _current(self) -> Credentials:
        with self._lock:
            seen = _identity(self._path)
            if seen != self._seen:
                self._seen = seen
                try:
                    self._credentials = read_credentials(self._path)
                    log.info("credentials are read anew", extra={"file": str(self._path)})
                    self._tell()
                except BusError as error:
                    log.error("credentials stay as they were", extra={"code": error.code, "error": str(error)})
            return self._credentials

    def _tell(self) -> None:
        if self._credentials.users:
            log.warning(
                "a server's credentials file holds passwords as they are; convert it: "
                "tidebus cli configure-credentials --for-server --file FILE",
                extra={"file": str(self._path), "users": len(self._credentials.users)},
            )


def read_credentials(path: Path) -> Credentials:
    """Read a credentials file.

    Raises:
        SecretFileModeError: others can read it.
        ConfigError: it cannot be read, or it is no such file.
    """
    try:
        tables = tomllib.loads(read_secret_text(path, "credentials"))
    except tomllib.TOMLDecodeError as error:  # its text may quote a character, never a password
        raise ConfigError("credentials file is no TOML", key="credentials", file=path, reason=error) from error
    users, kept = tables.get("users", {}), tables.get("scrypt", {})
    if not _are_texts(users) or not _are_texts(kept) or not (users or kept):
        raise ConfigError('credentials file must have a table [users] of name = "password"', key="users", file=path)
    hashes = {}
    for name, shown in kept.items():
        try:
            hashes[name] = PasswordHash.parse(shown)
        except (ValueError, binascii.Error):
            raise ConfigError("credentials file has a broken hash", key="scrypt", file=path, user=name) from None
    return Credentials(users, hashes)


def write_credentials(path: Path, user: str, password: str, *, for_server: bool = False) -> None:
    """Add a user to a credentials file, or change the password; the file is made, for its owner alone.

    ``for_server`` keeps only hashes, of the others in the file, too.

    Raises:
        ConfigError: it cannot be written, or what is there is no such file.
    """
    if not user or ":" in user or not password:
        raise ConfigError("a user's name is not empty and has no ':', a password is not empty", key="user")
    before = read_credentials(path) if path.exists() else Credentials({})
    users, hashes = {**before.users, user: password}, dict(before.hashes)
    hashes.pop(user, None)
    if for_server:
        hashes |= {name: PasswordHash.of(word) for name, word in users.items()}
        users = {}
    tables = {"users": users, "scrypt": {name: str(kept) for name, kept in hashes.items()}}
    lines = []
    for table, values in tables.items():
        if values:
            lines += [f"[{table}]", *(f"{_quoted(name)} = {_quoted(word)}" for name, word in sorted(values.items()))]
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write("\n".join([*lines, ""]))
        fresh.replace(path)
    except OSError as error:
        raise ConfigError("credentials file cannot be written", key="credentials", file=path, reason=error) from error


def _are_texts(table: object) -> bool:
    return isinstance(table, dict) and all(isinstance(text, str) and text for text in table.values())


def _identity(path: Path) -> tuple[int, ...] | None:
    try:
        stands = path.stat()
    except OSError:
        return None
    return stands.st_dev, stands.st_ino, stands.st_mtime_ns, stands.st_size, stands.st_mode


def _digest(password: str) -> bytes:
    return hashlib.sha256(password.encode()).digest()


def _quoted(text: str) -> str:
    """Return a basic string of TOML: JSON's, and DEL escaped, too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
