"""A landed chunk of a table image, given back from the records between its offsets: whole and in order, or not."""

from collections.abc import Iterable, Iterator

from schemas.changes import BinaryArray
from schemas.errors import Action, BusError, CorruptDataError
from schemas.rawlog.image_batch import ImageHead, ImageRows, ScanName, decode_image_columns, read_image_record
from schemas.rawlog.images import ImageChunk


class ImageChunkBrokenError(BusError):
    """The records of a chunk are not what its frontier record tells of; ``fields`` name table, scan, difference, and
    where in the images topic they stand. No resume passes it: the changefeed is created anew.
    """

    code, action = "rawlog.image_chunk_broken", Action.STOP_CHANGEFEED


def read_chunk(records: Iterable[bytes], chunk: ImageChunk) -> Iterator[ImageRows]:
    """Yield a chunk's rows, batch by batch, in key order; records of other scans are passed over.

    ``records`` are all values of the chunk's partition between its offsets, in their order. Nothing that was yielded
    counts unless the iteration ends by itself.

    Raises:
        ImageChunkBrokenError: a batch or a part is missing, comes twice or is another's; or sums, keys or range differ.
        CorruptDataError: a record is none of the topic's.
    """
    if not chunk.rows:
        return
    joined = _Joined(chunk)
    for record in records:
        head, columns = read_image_record(record)
        if head.scan != joined.scan:
            continue
        rows = joined.take(head, columns)
        if rows is not None:
            yield rows
    joined.finish()


class _Joined:
    """How far the reading of one chunk is."""

    def __init__(self, chunk: ImageChunk) -> None:
        self._chunk = chunk
        self.scan = ScanName(chunk.ts, chunk.number, chunk.attempt)
        self._at, self._rows, self._bytes = chunk.keys.start, 0, 0
        self._sequence = 0
        self._parts: list[memoryview] = []
        self._ended = False

    def take(self, head: ImageHead, columns: memoryview) -> ImageRows | None:
        if self._ended:
            raise self._broken("a record follows the last one", sequence=head.sequence)
        due = (self._chunk.table_id, self._sequence, len(self._parts))
        seen = (head.table_id, head.sequence, head.part)
        if seen != due:
            raise self._broken("a record is missing or comes twice", seen=seen, due=due)
        if head.start != self._at or not head.start < head.end <= self._chunk.keys.end:
            raise self._broken("batches do not join", due=self._at.hex(), start=head.start.hex(), end=head.end.hex())
        self._parts.append(columns)
        if len(self._parts) < head.parts:
            return None
        whole = columns if head.parts == 1 else memoryview(b"".join(self._parts))
        try:
            rows = decode_image_columns(head, whole)
        except CorruptDataError as error:
            raise self._broken(
                "a batch does not decode", sequence=head.sequence, reason=error.fields.get("reason")
            ) from error
        self._check_keys(head, rows.key)
        self._parts, self._sequence, self._at, self._ended = [], self._sequence + 1, head.end, head.last
        self._rows += head.count
        self._bytes += rows.bytes
        return rows

    def finish(self) -> None:
        chunk = self._chunk
        if not self._ended or self._at != chunk.keys.end:
            raise self._broken("the last record is missing", reached=self._at.hex(), end=chunk.keys.end.hex())
        if (self._rows, self._bytes) != (chunk.rows, chunk.bytes):
            raise self._broken("sums differ", seen=(self._rows, self._bytes), due=(chunk.rows, chunk.bytes))

    def _check_keys(self, head: ImageHead, keys: BinaryArray) -> None:
        """Look at the first and the last key: their order between is the store's, under the batch's checksum."""
        count = len(keys)
        if count and not head.start <= keys[0].as_py() <= keys[count - 1].as_py() < head.end:
            raise self._broken("keys lie outside their batch", sequence=head.sequence)

    def _broken(self, what: str, **fields: object) -> ImageChunkBrokenError:
        chunk = self._chunk
        where = {"partition": chunk.partition, "first_offset": chunk.offsets[0], "last_offset": chunk.offsets[1] - 1}
        return ImageChunkBrokenError(
            f"chunk of a table image is broken: {what}",
            table_id=chunk.table_id,
            **where,
            **self.scan.fields,
            **fields,
        )
