"""Files that hold secrets: who may read them, and those with one secret a line.

Of the lines the first is in use, the others are accepted still, so that secrets can be rotated.
"""

import os
import stat
from pathlib import Path

from schemas.errors import ConfigError

SECRET_BYTES_MIN = 16
FILE_BYTES_MAX = 1 << 20
"""A file of secrets or settings is small, with PEM texts in it too; a device or a pipe of another kind has no end."""


class SecretFileModeError(ConfigError):
    """A file with a secret can be read or changed by others than its owner; chmod 600 it."""

    code = "secrets.file_mode"


def read_secret_text(path: Path, key: str) -> str:
    """Return the text of a file that is a secret as a whole; ``key`` is the setting that names the file.

    Raises:
        SecretFileModeError: others can read it.
        ConfigError: it cannot be read, is no text or is too large. No message quotes a byte.
    """
    text, status = read_with_status(path, key)
    check_secret_mode(status, path, key)
    return text


def read_with_status(path: Path, key: str) -> tuple[str, os.stat_result]:
    """Return a small file's text, and whose that very file was.

    Raises:
        ConfigError: it cannot be read, is no text or is too large.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(FILE_BYTES_MAX + 1)
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or type(error).__name__) if isinstance(error, OSError) else "it is no text"
        raise ConfigError("file is not readable", key=key, file=path, reason=reason) from None
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError("file is too large", key=key, file=path, bytes_max=FILE_BYTES_MAX)
    return text, status


def check_secret_mode(status: os.stat_result, path: Path, key: str) -> None:
    """Refuse a file with secrets that others can read or write.

    The group may read one that belongs to another user: so orchestrators mount secrets for a process that is not root.
    What is no file (a pipe of the shell) has no such mode.

    Raises:
        SecretFileModeError: its mode lets others in.
    """
    shared = stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP
    if status.st_uid == os.geteuid():
        shared |= stat.S_IRGRP
    if stat.S_ISREG(status.st_mode) and status.st_mode & shared:
        mode = f"{stat.S_IMODE(status.st_mode):o}"
        raise SecretFileModeError(
            "a file with secrets must be its owner's alone; chmod 600 it", key=key, file=path, mode=mode
        )


def read_secret_lines(path: Path, key: str) -> tuple[str, ...]:
    """Return the lines of a file of secrets without blanks around them; empty ones and those after ``#`` do not count.

    ``key`` is the setting that names the file. No message quotes a line.

    Raises:
        SecretFileModeError: others can read it.
        ConfigError: it cannot be read, it holds nothing, or a secret is too short.
    """
    text = read_secret_text(path, key)
    lines = tuple(line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    if not lines:
        raise ConfigError("secret file is empty", key=key, file=path)
    for number, line in enumerate(lines, 1):
        if len(line.encode()) < SECRET_BYTES_MIN:
            allowed = f"at least {SECRET_BYTES_MIN} bytes"
            raise ConfigError("secret is too short", key=key, file=path, number=number, allowed=allowed)
    return lines
