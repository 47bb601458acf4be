"""What a Spark Python worker does for a task of ours: finds the task's number, and sends our errors to the driver.

A task's function gets its number and the frames that stand before it, and yields frames: bytes, as Spark moves them
between Python and the JVM (:class:`Frames`). pyspark calls it as it calls any function of an RDD.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any

from schemas.errors import BusError, CorruptDataError, UnexpectedError
from schemas.redaction import Redaction, redaction
from schemas.sink.fence import fence_of_task
from sorters.log.failures import RedactedWorkerError, WorkerError, is_of_code

_LENGTH = struct.Struct(">i")
_END_OF_DATA = -1
"""``pyspark.serializers.SpecialLengths.END_OF_DATA_SECTION``."""

Work = Callable[[int, Iterator[bytes]], Iterable[bytes]]
"""Takes the task's number and its frames; made of what can be pickled by name, such as a partial."""


class Frames:
    """Reads and writes frames as pyspark's serializers do: a length of four bytes, big-endian, and the bytes."""

    def load_stream(self, stream: IO[bytes]) -> Iterator[bytes]:
        """Yield frames until Spark says that there are no more.

        Raises:
            EOFError: the stream ends before that: Spark has given the task up, or lacks a block of it. pyspark's own
                serializers take it for the end; a task that writes would leave holes.
        """
        while True:
            head = stream.read(4)
            if len(head) < 4:
                raise EOFError("spark ends a task's frames before their end")
            length = _LENGTH.unpack(head)[0]
            if length == _END_OF_DATA:
                return
            if length < 0:
                raise CorruptDataError("spark sends no frame", length=length)
            frame = stream.read(length)
            if len(frame) < length:
                raise EOFError("stream ends within a frame")
            yield frame

    def dump_stream(self, frames: Iterable[bytes], stream: IO[bytes]) -> None:
        """Write all frames."""
        for frame in frames:
            stream.write(_LENGTH.pack(len(frame)))
            stream.write(frame)


@dataclass(frozen=True, slots=True)
class TaskWork:
    """A task's function, in the shape that pyspark calls; errors of ours carry the nonce of the job."""

    work: Work
    nonce: str

    def __call__(self, number: int, frames: Iterator[bytes]) -> Iterator[bytes]:
        # A generator: pyspark closes it when the task is given up, and what it holds is abandoned then.
        try:
            yield from self.work(number, frames)
        except Exception as error:
            ours = error if isinstance(error, BusError) else UnexpectedError.of(error) if is_of_code(error) else None
            if redaction() is not Redaction.OFF:  # Spark would log the texts of causes
                raise (RedactedWorkerError(error) if ours is None else WorkerError(ours, self.nonce)) from None
            if ours is None:
                raise
            raise WorkerError(ours, self.nonce) from error


@dataclass(frozen=True, slots=True)
class Answer:
    """A task's function whose answer is one frame: the driver gets the answers of all tasks joined, so each is led by
    its length."""

    work: Callable[[int], bytes]

    def __call__(self, number: int, frames: Iterator[bytes]) -> Iterator[bytes]:
        for _ in frames:
            pass
        answer = self.work(number)
        yield _LENGTH.pack(len(answer)) + answer


def fence_of_attempt(fence: bytes) -> bytes:
    """Return the fence of this attempt of a task at what the driver has given ``fence``; outside Spark it is that.

    Spark counts the attempts of all tasks of a session, so one that is made later has a higher number.
    """
    if not fence:
        return fence
    from pyspark import TaskContext

    context = TaskContext.get()
    return fence if context is None else fence_of_task(fence, context.taskAttemptId() + 1)


def split_answers(joined: bytes) -> list[bytes]:
    """Return the answers of a job's tasks, in the order of their numbers.

    Raises:
        CorruptDataError: the bytes are not whole answers.
    """
    answers, at = list[bytes](), 0
    while at < len(joined):
        if at + 4 > len(joined):
            raise CorruptDataError("answers of a spark job end within a length", bytes=len(joined))
        length = _LENGTH.unpack_from(joined, at)[0]
        if length < 0 or at + 4 + length > len(joined):
            raise CorruptDataError("answers of a spark job end within an answer", bytes=len(joined), length=length)
        answers.append(joined[at + 4 : at + 4 + length])
        at += 4 + length
    return answers


def command(work: TaskWork) -> tuple[Any, ...]:
    """Return what pyspark's worker expects to unpickle: the function, no profiler, how to read, how to write."""
    return work, None, Frames(), Frames()
