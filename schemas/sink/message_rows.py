"""Ids of rows as messages between a sorter and its processors hold them, and their sum.

Both kinds of row messages (:mod:`schemas.sink.sql_rows`, :mod:`schemas.sink.storage_rows`) begin with heads of one
layout, and keys stand behind them: literals for a database, raw keys for files. An id is a non-linear mix of commit_ts,
start_ts, op, key and the table's name, so it does not hang on how rows are cut into messages, nor on what a row holds.

The format, for readers in other languages: docs/formats/sink-topic.md.
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from schemas.flow.flow_sum import MASK, WORD_BYTES, FlowSum, factor, mix
from schemas.json_text import read_json
from schemas.sink.sql_rows import HEAD_BYTES, HEADS

Words = npt.NDArray[np.uint64]
_FIRST_KEY_WORD: Final = 5
_NAMES_KEPT: Final = 65_536
_PAD: Final = bytes(WORD_BYTES)
"""Before the first key, so that the word which ends with it lies in the buffer."""
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@lru_cache(_NAMES_KEPT)
def table_word(schema: str, table: str) -> int:
    """Return what stands for a table's name in the ids of its rows."""
    name = f"{schema}\0{table}".encode("utf-8", "surrogateescape")
    return int.from_bytes(blake2b(name, digest_size=WORD_BYTES).digest(), "little")


@lru_cache(_NAMES_KEPT)
def word_of_form(key: bytes) -> int:
    """Return the :func:`table_word` of a row message's key: a form, or a folder.

    Raises:
        ValueError, IndexError, TypeError: it is neither.
    """
    parts = read_json(key.decode("utf-8", "surrogateescape"))
    return table_word(str(parts[1]), str(parts[2]))


def message_row_id(commit_ts: int, start_ts: int, op: int, key: bytes, table: int) -> int:
    """Return the id of one row: what :func:`message_row_ids` returns of many.

    Words 0 to 4 are commit_ts, start_ts, the key's length times 256 plus the op's byte, the table's word, and the key's
    last 8 bytes, with zeros before a shorter one; from 5 on the key's whole words of 8 bytes. Bytes are little-endian.
    """
    words = [commit_ts & MASK, start_ts & MASK, len(key) * 256 + op, table]
    words.append(int.from_bytes(key[-WORD_BYTES:].rjust(WORD_BYTES, b"\0"), "little"))
    whole = len(key) // WORD_BYTES * WORD_BYTES
    words += [int.from_bytes(key[at : at + WORD_BYTES], "little") for at in range(0, whole, WORD_BYTES)]
    return mix(sum(factor(number) * word for number, word in enumerate(words)) & MASK)


def message_row_ids(heads: npt.NDArray[Any], buffer: npt.NDArray[np.uint8], key_at: Any, tables: Words) -> Words:
    """Return the ids of rows.

    Args:
        heads: of dtype ``HEADS``, n of them.
        buffer: holds the keys; at least 8 bytes stand before where the first one ends.
        key_at: where in it each key begins.
        tables: the word of each row's table.
    """
    length = heads["key"].astype(np.int64)
    sums = heads["commit_ts"].astype(np.uint64) * _factor(0)
    sums += heads["start_ts"].astype(np.uint64) * _factor(1)
    sums += ((length << 8) | heads["op"]).view(np.uint64) * _factor(2)
    sums += tables * _factor(3)
    words = np.ndarray((max(len(buffer) - WORD_BYTES + 1, 0),), "<u8", buffer, strides=(1,))
    last = words[key_at + length - WORD_BYTES]
    shortest, longest = int(length.min()), int(length.max())
    if shortest < WORD_BYTES:
        # What stands before a short key is none of it.
        lacking = ((WORD_BYTES - np.clip(length, 1, WORD_BYTES)) * 8).view(np.uint64)
        last = np.where(length > 0, (last >> lacking) << lacking, np.uint64(0))
    sums += last * _factor(4)
    for number in range(longest // WORD_BYTES):
        at, least = number * WORD_BYTES, (number + 1) * WORD_BYTES
        if shortest >= least:
            sums += words[key_at + at] * _factor(_FIRST_KEY_WORD + number)
        else:
            longer = np.flatnonzero(length >= least)
            sums[longer] += words[key_at[longer] + at] * _factor(_FIRST_KEY_WORD + number)
    sums ^= sums >> _S30
    sums *= _M1
    sums ^= sums >> _S27
    sums *= _M2
    sums ^= sums >> _S31
    return sums


class RowSummer:
    """Sums up rows of many messages at once, as a call of numpy costs what some ten rows do."""

    def __init__(self) -> None:
        self.bytes_total = 0
        """Of what waits."""
        self._heads: list[bytes] = []
        self._keys: list[bytes] = [_PAD]
        self._tables: list[int] = []
        self._counts: list[int] = []

    def add(self, value: bytes, first: int, end: int, keys: tuple[int, int], table: int) -> None:
        """Take rows ``first`` to ``end`` of a message, whose keys stand at ``keys`` in it; they are of one table."""
        heads, key_bytes = value[first * HEAD_BYTES : end * HEAD_BYTES], value[keys[0] : keys[1]]
        self._heads.append(heads)
        self._keys.append(key_bytes)
        self._tables.append(table)
        self._counts.append(end - first)
        self.bytes_total += len(heads) + len(key_bytes)

    def take(self) -> FlowSum:
        """Return the sum of what was added since the last call."""
        if not self._counts:
            return FlowSum()
        heads = np.frombuffer(b"".join(self._heads), HEADS)
        buffer = np.frombuffer(b"".join(self._keys), np.uint8)
        ends = np.cumsum(heads["key"], dtype=np.int64)
        tables = np.repeat(np.array(self._tables, np.uint64), self._counts)
        ids = message_row_ids(heads, buffer, ends - heads["key"] + WORD_BYTES, tables)
        for held in (self._heads, self._tables, self._counts):
            held.clear()
        self._keys, self.bytes_total = [_PAD], 0
        return FlowSum(len(ids), int(np.add.reduce(ids)))


def sums_of(ids: Words, home: npt.NDArray[Any]) -> dict[int, FlowSum]:
    """Return the sum of ids by the number in ``home``, which is not negative."""
    added: dict[int, FlowSum] = {}
    for at in range(0, len(ids), _SUMMED_MAX):
        part, where = ids[at : at + _SUMMED_MAX], home[at : at + _SUMMED_MAX]
        counts = np.bincount(where)
        # In halves of 32 bits, of which a double holds the sum exactly.
        low = np.bincount(where, (part & np.uint64(0xFFFF_FFFF)).astype(np.float64))
        high = np.bincount(where, (part >> np.uint64(32)).astype(np.float64))
        for number in np.flatnonzero(counts).tolist():
            total = (int(low[number]) + (int(high[number]) << 32)) & MASK
            added[number] = added.get(number, FlowSum()) + FlowSum(int(counts[number]), total)
    return added


_SUMMED_MAX: Final = 1 << 20
"""Rows whose halves of 32 bits have a sum below 2**53."""


@lru_cache
def _factor(number: int) -> np.uint64:
    return np.uint64(factor(number))


def sum_of_ids(ids: Sequence[int]) -> FlowSum:
    """Return the sum of ids that were made one by one."""
    return FlowSum(len(ids), sum(ids) & MASK)
