"""Packed times and TIME values to text, and the change of time zone, all rows at once.

Text is built as a byte matrix: one row per value, two digits at a time from a table of the 100 pairs.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.changes import BinaryArray
from schemas.tidb.packed_time import datetime_text, duration_text
from sorters.core.columnar.spans import BoolArray, Bytes, IntArray, matrix_spans

Packed = npt.NDArray[np.uint64]

DIGIT_PAIRS = np.frombuffer(b"".join(b"%02d" % pair for pair in range(100)), np.dtype("<u2"))
"""The two ASCII digits of 0 to 99."""
DATE_BYTES, SECONDS_BYTES = 10, 19
_NANOSECONDS = 1_000_000_000
_MICROSECONDS_MAX = 999_999
_YEAR_MAX, _HOURS_MAX = 9999, 999
"""What the byte matrices have room for, and MySQL knows less; the packed form can hold more, in corrupt rows."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR_S = 3_600


def _field(packed: Packed, shift: int, mask: int) -> IntArray:
    return ((packed >> np.uint64(shift)) & np.uint64(mask)).astype(np.int64)


def unpack(packed: Packed) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray, IntArray, IntArray]:
    """Return year, month, day, hour, minute, second, microsecond."""
    months = (packed >> np.uint64(46)).astype(np.int64)
    year = months // 13
    return (
        year,
        months - year * 13,
        _field(packed, 41, 31),
        _field(packed, 36, 31),
        _field(packed, 30, 63),
        _field(packed, 24, 63),
        _field(packed, 0, 0xFFFFFF),
    )


def fixed_text(matrix: Bytes, valid: BoolArray | None) -> BinaryArray:
    """View a byte matrix as a ``pyarrow.BinaryArray`` of equally long values."""
    count, width = matrix.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32) if width else np.zeros(count + 1, np.int32)
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), count, [bits, pa.py_buffer(offsets), pa.py_buffer(matrix)])


def _put_pair(matrix: Bytes, at: int, values: IntArray) -> None:
    matrix[:, at : at + 2] = DIGIT_PAIRS[values].view(np.uint8).reshape(-1, 2)


def _put_fraction(matrix: Bytes, at: int, microseconds: IntArray, fsp: int) -> None:
    matrix[:, at] = ord(".")
    digits = np.empty((len(matrix), 6), np.uint8)
    _put_pair(digits, 0, microseconds // 10_000 % 100)
    _put_pair(digits, 2, microseconds // 100 % 100)
    _put_pair(digits, 4, microseconds % 100)
    matrix[:, at + 1 : at + 1 + fsp] = digits[:, :fsp]


def datetime_texts(packed: Packed, fsp: int, valid: BoolArray | None = None, *, date_only: bool = False) -> BinaryArray:
    """Return ``YYYY-MM-DD[ hh:mm:ss[.f]]``, ``fsp`` fraction digits."""
    year, month, day, hour, minute, second, micro = unpack(packed)
    if len(packed) and (year.max() > _YEAR_MAX or micro.max() > _MICROSECONDS_MAX):
        return _each(packed, lambda value: datetime_text(value, fsp, date_only=date_only), valid)
    width = DATE_BYTES if date_only else SECONDS_BYTES + (1 + fsp if fsp else 0)
    matrix = np.empty((len(packed), width), np.uint8)
    _put_pair(matrix, 0, year // 100)
    _put_pair(matrix, 2, year % 100)
    matrix[:, 4] = matrix[:, 7] = ord("-")
    _put_pair(matrix, 5, month)
    _put_pair(matrix, 8, day)
    if not date_only:
        matrix[:, 10] = ord(" ")
        _put_pair(matrix, 11, hour)
        matrix[:, 13] = matrix[:, 16] = ord(":")
        _put_pair(matrix, 14, minute)
        _put_pair(matrix, 17, second)
        if fsp:
            _put_fraction(matrix, SECONDS_BYTES, micro, fsp)
    return fixed_text(matrix, valid)


def duration_texts(nanoseconds: IntArray, fsp: int, valid: BoolArray | None = None) -> BinaryArray:
    """Return ``[-]hh:mm:ss[.f]``; hours take two digits, or three from 100 on."""
    negative = nanoseconds < 0
    magnitude = np.abs(nanoseconds)
    seconds, rest = magnitude // _NANOSECONDS, magnitude % _NANOSECONDS
    hours = seconds // 3600
    if len(hours) and (hours.max() > _HOURS_MAX or magnitude.min() < 0):
        return _each(nanoseconds, lambda value: duration_text(value, fsp), valid)
    width = 10 + (1 + fsp if fsp else 0)
    matrix = np.empty((len(nanoseconds), width), np.uint8)  # sign, up to three digits of hours, :mm:ss[.f]
    matrix[:, 1] = hours // 100 % 10 + ord("0")
    _put_pair(matrix, 2, hours % 100)
    matrix[:, 4] = matrix[:, 7] = ord(":")
    _put_pair(matrix, 5, seconds // 60 % 60)
    _put_pair(matrix, 8, seconds % 60)
    if fsp:
        _put_fraction(matrix, 10, rest // 1000, fsp)
    first = np.where(hours >= 100, 1, 2)
    start = first - negative
    matrix[np.flatnonzero(negative), start[negative]] = ord("-")
    return matrix_spans(matrix, start, np.full(len(matrix), width, np.int64)).to_arrow(valid)


def _each(values: npt.NDArray[Any], text_of: Callable[[int], str], valid: BoolArray | None) -> BinaryArray:
    """Write values one by one: for numbers that no real row holds."""
    texts = pa.array([text_of(value).encode() for value in values.tolist()], pa.binary())
    return texts if valid is None else pc.if_else(pa.array(valid), texts, pa.scalar(None, pa.binary()))


def no_calendar_times(packed: Packed) -> BoolArray:
    """Tell which packed times cannot change zone: they are not zero, and no date or time of day either."""
    year, month, day, hour, minute, second, micro = unpack(packed)
    epoch = days_of_civil(year, np.maximum(month, 1), day) * 86_400 + hour * 3600 + minute * 60 + second
    odd = (pack_epoch(epoch, micro) != packed) | (micro > _MICROSECONDS_MAX) | (year < 1) | (year > _YEAR_MAX)
    bad: BoolArray = odd & (packed != 0)
    return bad


def in_zone(packed: Packed, zone: tzinfo) -> Packed:
    """Move packed UTC TIMESTAMPs into ``zone``; the zero time stays. Asks the zone twice per hour seen."""
    if zone is UTC or not len(packed):
        return packed
    year, month, day, hour, minute, second, micro = unpack(packed)
    zero = packed == 0
    days = days_of_civil(np.where(zero, 2000, year), np.where(zero, 1, month), np.where(zero, 1, day))
    epoch = days * 86_400 + hour * 3600 + minute * 60 + second
    return np.where(zero, packed, pack_epoch(epoch + _offsets_s(epoch, zone), micro))


def utc_of(local: IntArray, zone: tzinfo) -> IntArray:
    """Return the seconds since 1970 in UTC of such in ``zone``, as Go's ``time.Date`` finds them.

    Of the hour that clocks show twice that is the first one in zones behind UTC, the second in those before it.
    """
    guess = local - _offsets_s(local, zone)
    utc: IntArray = local - _offsets_s(guess, zone)
    return utc


def _offsets_s(epoch: IntArray, zone: tzinfo) -> IntArray:
    """Return the offset of each moment. Clocks change at any minute (00:01 in St. John's), but not twice in an hour: an
    hour that begins and ends with one offset has it throughout, and of any other each second that is seen is asked for.
    """
    hours, hour_index = np.unique(epoch // _HOUR_S, return_inverse=True)
    hour_index = hour_index.reshape(-1)
    starts_s = (hours * _HOUR_S).tolist()
    first = np.array([_offset_s(start_s, zone) for start_s in starts_s], np.int64)
    last = np.array([_offset_s(start_s + _HOUR_S - 1, zone) for start_s in starts_s], np.int64)
    by_row: IntArray = first[hour_index]
    changes = first != last
    if changes.any():
        rows = np.flatnonzero(changes[hour_index])
        seconds, second_index = np.unique(epoch[rows], return_inverse=True)
        offsets = np.array([_offset_s(second, zone) for second in seconds.tolist()], np.int64)
        by_row[rows] = offsets[second_index.reshape(-1)]
    return by_row


def _offset_s(epoch_s: int, zone: tzinfo) -> int:
    try:
        offset = (_EPOCH + timedelta(seconds=epoch_s)).astimezone(zone).utcoffset()
    except OverflowError:  # the first or last day that datetime knows; TIMESTAMP is within 1970 to 2038
        return 0
    return int(offset.total_seconds()) if offset is not None else 0


def days_of_civil(year: IntArray, month: IntArray, day: IntArray) -> IntArray:
    """Count days since 1970-01-01 in the proleptic Gregorian calendar, with years that start in March."""
    shifted = year - (month <= 2)
    era = shifted // 400
    of_era = shifted - era * 400
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    days: IntArray = era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
    return days


def pack_epoch(epoch: IntArray, micro: IntArray) -> Packed:
    """Return packed times of seconds since 1970 and microseconds."""
    days, clock = epoch // 86_400, epoch % 86_400
    date = days.astype("datetime64[D]")
    month_number = date.astype("datetime64[M]").astype(np.int64)
    year, month = month_number // 12 + 1970, month_number % 12 + 1
    day = (date - date.astype("datetime64[M]")).astype(np.int64) + 1
    ymd = (year * 13 + month) << 5 | day
    hms = clock // 3600 << 12 | clock // 60 % 60 << 6 | clock % 60
    packed: Packed = ((ymd << 17 | hms) << 24 | micro).astype(np.uint64)
    return packed
