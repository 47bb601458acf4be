"""What watermarks of output topics say of table images while some are under way: the header ``tidebus-images``.

A consumer that materialises a table has a part of it until its image is whole, and no row says which is the last. So a
watermark of a changefeed that waits for images has a header, JSON:

    {"left": 3, "whole": [["shop", "orders"]], "waiting": [["shop", "items"], ["shop", "users"]]}

``left`` counts the physical tables (partitions) whose image is not whole at the watermark's ts; ``whole`` names the
tables whose image became whole since the cut before, and ``waiting`` all that are not, unless they are many. Where a
watermark has no such header nothing is to come. It is a function of the watermark's cut, so a repeated one says the
same.

The format on a page: docs/formats/table-images.md §5.
"""

import json
from dataclasses import dataclass
from typing import Final, Self

from schemas.errors import CorruptDataError
from schemas.json_text import read_int, read_json, read_text

IMAGES_HEADER: Final = "tidebus-images"
WAITING_MAX: Final = 100
"""Tables up to which all that wait are named: every watermark of every partition says it again."""
_BYTES_MAX: Final = 8 * 1024
"""Of the names of those that wait; names may have 64 characters of four bytes each."""

TableName = tuple[str, str]
"""Schema and table, as messages name them."""


@dataclass(frozen=True, slots=True)
class ImageNote:
    """What one watermark says."""

    left: int
    whole: tuple[TableName, ...] = ()
    waiting: tuple[TableName, ...] | None = None
    """None: they are too many to be named."""

    def encode(self) -> bytes:
        """Return the header's bytes."""
        said = {"left": self.left, "whole": self.whole}
        waiting = self.waiting
        if waiting is not None and len(waiting) <= WAITING_MAX and len(_json(waiting)) <= _BYTES_MAX:
            said["waiting"] = waiting
        return _json(said)

    @classmethod
    def decode(cls, header: bytes) -> Self:
        """Read a header.

        Raises:
            CorruptDataError: it is none.
        """
        try:
            said = read_json(header)
            return cls(
                left=read_int(said["left"], bits=63),
                whole=_names(said["whole"]),
                waiting=None if said.get("waiting") is None else _names(said["waiting"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptDataError(
                "images header does not decode", header=header[:64].hex(), bytes=len(header), reason=repr(error)
            ) from error


NOTHING_TO_COME: Final = ImageNote(0, (), ())
"""What a watermark without the header says."""


@dataclass(frozen=True, slots=True)
class WatermarkNote:
    """The note of a cut's watermarks, which all have one position."""

    position: bytes
    header: bytes


def _names(said: object) -> tuple[TableName, ...]:
    if not isinstance(said, list):
        raise TypeError("names of tables are no list")
    return tuple((read_text(schema), read_text(table)) for schema, table in said)


def _json(said: object) -> bytes:
    return json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()
