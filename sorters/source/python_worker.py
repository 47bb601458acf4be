"""What a task does once for the Python worker that Spark runs it in, which is a plain one of pyspark's.

Between tasks pyspark's daemon collects garbage, walking through all that was ever imported, and drops what importers
know of zip files, so that each is read anew. Both cost more than a short task. A session of ours has a daemon of ours
(:mod:`sorters.spark.worker.python_daemon`); in a session of somebody else's this is what can be had without one: what
is imported is taken out of the collector's way, and a zip file that has not changed is not read again.
"""

import gc
import zipimport
from functools import cache
from pathlib import Path

_PLAIN = zipimport.zipimporter.invalidate_caches


@cache
def settle_worker() -> None:
    """Do it, the first time."""
    gc.collect()
    gc.freeze()
    keep_unchanged_zips()


def keep_unchanged_zips() -> None:
    """Let importers read a zip file again only if it has changed."""
    zipimport.zipimporter.invalidate_caches = _invalidate_changed  # type: ignore[method-assign, assignment]


_read_at: dict[str, tuple[int, int]] = {}
"""Zip file → its time and size when it was last read."""


def _invalidate_changed(importer: zipimport.zipimporter) -> None:
    """Let an importer read its zip file again if that has changed."""
    try:
        status = Path(importer.archive).stat()
    except OSError:
        return _PLAIN(importer)
    now = status.st_mtime_ns, status.st_size
    if _read_at.get(importer.archive) != now:
        _PLAIN(importer)
        _read_at[importer.archive] = now
    return None
