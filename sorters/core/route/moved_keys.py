"""Updates that change the key by which readers know a row, though TiKV knows it by another: they leave as two changes.

A clustered key stands in the row's key, so TiDB itself makes a delete and an insert when it changes. A key that is not
clustered, and one whose collation leaves case or accents out of the row's key ('a' to 'A'), change in place. Whoever
replays changes by that key would keep the old row for ever.
"""

from collections.abc import Iterator

import numpy as np

from sorters.core.mount.mounted import MountedPart, RowKind
from sorters.core.route.split_update import split_mask


def by_key(part: MountedPart) -> Iterator[MountedPart]:
    """Yield a part; of its updates those that change the handle key as a delete and an insert. Keys are compared as
    bytes, whatever their collation.
    """
    offsets = [at for at in part.table.handle_columns if not part.table.columns[at].in_key]
    if part.kind is not RowKind.UPDATE or not offsets:
        yield part
        return
    old, new = part.old_columns(), part.new_columns()
    moved = split_mask([old[at].text for at in offsets], [new[at].text for at in offsets], np.ones(len(part), np.bool_))
    if not moved.any():
        yield part
        return
    yield from part.split(np.flatnonzero(moved))
    if not moved.all():
        yield part.take(np.flatnonzero(~moved))
