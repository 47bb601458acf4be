"""How far a stream of the Spark source is: what stands in the query's checkpoint. Pure.

An offset is a ts and a bound in the frontier topic: all changes up to ``resolved_ts`` were handed out, and the frontier
record before ``frontier_offset`` is at or below it. By the frontier law any record at or above the ts that comes after
it gives the same rows, so a batch that is run again has the same rows, whatever has been published since.

A query that starts at an image, and has not got all of it, also notes by which frontier records it knows the image.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from schemas.errors import CorruptDataError
from schemas.ids import Ts
from schemas.json_text import read_int

FORM, IMAGE_FORM = 1, 2


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """A border between two batches."""

    resolved_ts: Ts
    frontier_offset: int
    image: tuple[int, int] | None = None
    """Frontier offsets ``[start, end)`` that list the chunks of the image that is not passed yet; None: no image."""

    @property
    def border(self) -> "SourceOffset":
        """The border alone."""
        return self if self.image is None else SourceOffset(self.resolved_ts, self.frontier_offset)

    def as_json(self) -> dict[str, int]:
        """Return what Spark writes into the checkpoint."""
        written = {"form": FORM, "resolved_ts": self.resolved_ts, "frontier_offset": self.frontier_offset}
        if self.image is None:
            return written
        return {**written, "form": IMAGE_FORM, "image_start": self.image[0], "image_end": self.image[1]}

    @classmethod
    def read(cls, raw: Mapping[str, object]) -> Self:
        """Return what :meth:`as_json` made.

        Raises:
            CorruptDataError: the checkpoint holds something else.
        """
        try:
            if raw["form"] not in (FORM, IMAGE_FORM):
                raise ValueError(f"form is {raw['form']!r}, not {FORM} or {IMAGE_FORM}")
            image = None
            if raw["form"] == IMAGE_FORM:
                image = read_int(raw["image_start"], bits=63), read_int(raw["image_end"], bits=63)
            return cls(Ts(read_int(raw["resolved_ts"], bits=63)), read_int(raw["frontier_offset"], bits=63), image)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptDataError(
                "checkpoint of the query has an offset that is none of this source",
                offset=str(raw)[:200],
                reason=repr(error),
            ) from error
