"""UNIX_TIMESTAMP of a time, which is read in the changefeed's zone, as in TiCDC's session.

Source: pingcap/tidb ``pkg/expression/builtin_time.go`` and ``pkg/types/core_time.go`` (``AdjustedGoTime``).
"""

from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from typing import Final

from sorters.core.filter.value_expression.parts import Bound, MisfitError, Operand, Row, ValueKind, constant, made_of
from sorters.core.filter.value_expression.time_functions import as_time

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = 1_000_000
_MICROSECONDS_END: Final = 32_536_771_200 * _SECOND
"""From which on it is 0, as before the first second of 1970."""
_DIGITS: Final = 12


def unix_timestamp(at: int, operand: Bound, zone: tzinfo) -> Bound:
    """Return seconds since 1970, with the fraction that the column or text has; 0 of what no calendar has.

    Raises:
        MisfitError: it is no column and no text that is written down: how long is its fraction?
    """
    if operand.kind is ValueKind.NULL:
        return constant(at, ValueKind.NULL, None)
    moment = as_time("UNIX_TIMESTAMP", operand)
    scale = operand.scale
    if moment.constant:
        scale = len(str(moment.of({})).partition(".")[2].rstrip("0"))
    elif not operand.what:
        raise MisfitError("UNIX_TIMESTAMP takes a column or a time that is written down", operand.at)

    def of(row: Row) -> Operand:
        text = moment.of(row)
        if text is None:
            return None
        micros = _microseconds(str(text), zone)
        return Decimal(micros // 10 ** (6 - scale)).scaleb(-scale) if scale else micros // _SECOND

    if scale:
        return made_of(at, ValueKind.DECIMAL, of, [moment], scale=scale, digits=_DIGITS)
    return made_of(at, ValueKind.INT, of, [moment])


def _microseconds(text: str, zone: tzinfo) -> int:
    try:
        time = datetime.fromisoformat(text)
        first, second = (_since_epoch(time.replace(tzinfo=zone, fold=fold)) for fold in (0, 1))
        # An hour that comes twice is its first; in one that is left out, the moment when the clock jumps stands.
        micros = first if first <= second else _jump(second, first, zone)
    except (ValueError, OverflowError):
        return 0
    return micros if _SECOND <= micros < _MICROSECONDS_END else 0


def _since_epoch(time: datetime) -> int:
    return (time.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)


def _jump(low: int, high: int, zone: tzinfo) -> int:
    """Return the microsecond in (low, high] from which on the zone's offset is another."""
    before = _offset(low, zone)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _offset(middle, zone) == before else (low, middle)
    return high


def _offset(micros: int, zone: tzinfo) -> timedelta | None:
    return (_EPOCH + timedelta(microseconds=micros)).astimezone(zone).utcoffset()
