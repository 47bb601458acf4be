"""Who may ask the API: a file of users and passwords, which servers check against and the command line takes from.

TOML, one table ``[users]`` of ``name = "password"``. It holds passwords as they are, so it must be its owner's alone
(mode 0600): a file that others can read is refused.
"""

import hashlib
import hmac
import json
import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from schemas.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Credentials:
    """Users with their passwords."""

    users: Mapping[str, str] = field(repr=False)

    def allow(self, user: str, password: str) -> bool:
        """Tell whether the password is the user's. How long it takes says neither who there is nor how far they agree.

        Digests are compared, so that lengths do not show; a user who is unknown is compared, too.
        """
        known = self.users.get(user)
        same = hmac.compare_digest(_digest(known or ""), _digest(password))
        return same and known is not None


def read_credentials(path: Path) -> Credentials:
    """Read a credentials file.

    Raises:
        ConfigError: it cannot be read, others can read it, or it is no such file.
    """
    try:
        mode = path.stat().st_mode
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("credentials file is not readable", key="credentials", file=path, reason=error) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError("credentials file must be its owner's alone; chmod 600 it", key="credentials", file=path)
    try:
        users = tomllib.loads(text).get("users")
    except tomllib.TOMLDecodeError as error:  # its text may quote a character, never a password
        raise ConfigError("credentials file is no TOML", key="credentials", file=path, reason=error) from error
    if not isinstance(users, dict) or not users or not all(isinstance(user, str) and user for user in users.values()):
        raise ConfigError('credentials file must have a table [users] of name = "password"', key="users", file=path)
    return Credentials(users)


def write_credentials(path: Path, user: str, password: str) -> None:
    """Add a user to a credentials file, or change the password; the file is made, for its owner alone.

    Raises:
        ConfigError: it cannot be written, or what is there is no such file.
    """
    if not user or ":" in user or not password:
        raise ConfigError("a user's name is not empty and has no ':', a password is not empty", key="user")
    users = dict(read_credentials(path).users) if path.exists() else {}
    users[user] = password
    lines = [f"{_quoted(name)} = {_quoted(word)}" for name, word in sorted(users.items())]
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write("\n".join(["[users]", *lines, ""]))
        fresh.replace(path)
    except OSError as error:
        raise ConfigError("credentials file cannot be written", key="credentials", file=path, reason=error) from error


def _digest(password: str) -> bytes:
    return hashlib.sha256(password.encode()).digest()


def _quoted(text: str) -> str:
    """Return a basic string of TOML: JSON's, and DEL escaped, too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
