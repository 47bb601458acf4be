"""Files and folders that a command line names: looked at before anything is asked of anybody."""

import tempfile
from pathlib import Path

from schemas.errors import ConfigError


def changefeed_text(file: Path) -> str:
    """Return a changefeed file's text.

    Raises:
        ConfigError: it cannot be read, or is no UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("changefeed file is not readable", file=str(file), reason=error) from error


def writable_folder(folder: Path) -> Path:
    """Return the folder ``--data-dir``, made where it lacked and tried with a file.

    Raises:
        ConfigError: it cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(
            "data-dir cannot be written; give a folder that this user may write",
            key="data-dir",
            got=folder,
            reason=reason,
        ) from error
