"""Files of secrets: one secret a line, the first in use, the others accepted still, so that they can be rotated."""

import stat
from pathlib import Path

from schemas.errors import ConfigError

SECRET_BYTES_MIN = 16
OTHERS = stat.S_IWGRP | stat.S_IRWXO
"""A group may read: that is how Kubernetes and Docker hand a secret to a process that is not root."""


def read_secret_lines(path: Path, key: str) -> tuple[str, ...]:
    """Return the lines of a file of secrets without blanks around them; empty ones and those after ``#`` do not count.

    ``key`` is the setting that names the file. No message quotes a line.

    Raises:
        ConfigError: it cannot be read, everybody can read it, it holds nothing, or a secret is too short.
    """
    try:
        mode, text = path.stat().st_mode, path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError("secret file is not readable", key=key, file=path, reason=reason) from None
    if mode & OTHERS:
        refusal = "secret file is readable for everybody or writable for its group; chmod 600 it"
        raise ConfigError(refusal, key=key, file=path)
    lines = tuple(line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    if not lines:
        raise ConfigError("secret file is empty", key=key, file=path)
    for number, line in enumerate(lines, 1):
        if len(line.encode()) < SECRET_BYTES_MIN:
            allowed = f"at least {SECRET_BYTES_MIN} bytes"
            raise ConfigError("secret is too short", key=key, file=path, number=number, allowed=allowed)
    return lines
