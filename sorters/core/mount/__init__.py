"""Row changes as columns: locate, decode, and hand to an encoder, without touching a row in Python.

Where the time goes, and what else was looked at: docs/decisions/2026-11-22-columnar-mount-and-encode.md.
"""

from sorters.core.mount.column import Column
from sorters.core.mount.mounted import MountedColumns, MountedPart, RowKind
from sorters.core.mount.mounter import mount

__all__ = ["Column", "MountedColumns", "MountedPart", "RowKind", "mount"]
