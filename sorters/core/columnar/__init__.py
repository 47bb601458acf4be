"""Row changes as columns: locate, decode, and hand to an encoder, without touching a row in Python."""

from sorters.core.columnar.column import Column
from sorters.core.columnar.mount import mount
from sorters.core.columnar.mounted import MountedColumns, MountedPart, RowKind

__all__ = ["Column", "MountedColumns", "MountedPart", "RowKind", "mount"]
