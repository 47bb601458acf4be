"""Row changes as columns: locate, decode, and hand to an encoder, without touching a row in Python.

Where the time goes (``tests/bench/mount_encode``, CPU ns a row, 65,536 rows, a busy machine): sbtest1 in canal-json
440, of which the final join of segments 137, numbers to text 95, copying strings out of the row buffer 34, looking for
characters to escape 34, row headers 70. wide10 in canal-json 1,900: joins 460, gathers 280 (JSON templates most of
all), numbers to text 260, words of numbers 170, times 110, decimals 90. A batch costs 1 to 3 ms however small it is;
hence the scalar path.
"""

from sorters.core.mount.column import Column
from sorters.core.mount.mounted import MountedColumns, MountedPart, RowKind
from sorters.core.mount.mounter import mount

__all__ = ["Column", "MountedColumns", "MountedPart", "RowKind", "mount"]
