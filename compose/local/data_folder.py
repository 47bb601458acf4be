"""The folder of a run: its own alone while it lasts, and never one that holds anything else."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from schemas.errors import ConfigError

DATA_MARK: Final = ".tidebus-run"


@contextmanager
def data_folder(folder: Path, *, keep: bool) -> Iterator[Path]:
    """Hold a run's own folder, emptied unless ``keep``; a folder that no run has made is never emptied.

    Raises:
        ConfigError: the folder holds something else, or another run that lives.
    """
    mark = folder / DATA_MARK
    if folder.exists() and any(folder.iterdir()) and not mark.exists():
        raise ConfigError("data folder holds files that are not of a run; give another --data-dir", folder=folder)
    folder.mkdir(parents=True, exist_ok=True)
    with mark.open("a") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError("another run uses this data folder; give another --data-dir", folder=folder) from error
        if not keep:
            _empty(folder)
        yield folder


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != DATA_MARK:
            path.unlink()
