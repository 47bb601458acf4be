"""Whether one update is split, said as TiCDC says it: what the sorter decides for whole columns is held against it.

Source: pingcap/tiflow ``cdc/model/sink.go``, ``shouldSplitUpdateEvent``.
"""

from collections.abc import Sequence

Text = str | bytes | None


def must_split(old: Sequence[Text], new: Sequence[Text]) -> bool:
    """Tell whether an update is split; the texts are those of its key columns, in one order."""
    return any(_as_bytes(before) != _as_bytes(after) for before, after in zip(old, new, strict=True))


def _as_bytes(text: Text) -> bytes:
    if text is None:
        return b"null"
    return text.encode() if isinstance(text, str) else text
