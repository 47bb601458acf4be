"""A range of a table's rows by the values of its integer key, as users write it, and the raw keys that it comes to.

    100:2000      rows whose key is at least 100 and below 2000
    :0            all below 0
    2000:         all from 2000 on

The key is the clustered primary key of one whole number, or TiDB's hidden ``_tidb_rowid``. TiKV orders both as signed
numbers, so an unsigned key has its upper half first, and a range of it may come to two ranges of raw keys.
"""

import re
from dataclasses import dataclass
from typing import Final

from schemas.ids import TableId
from schemas.tidb.keys import row_key

_FORM: Final = re.compile(r"(-?[0-9]{1,20})?:(-?[0-9]{1,20})?")
_HALF: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class HandleRange:
    """Values ``[start, end)``; None: no bound."""

    start: int | None
    end: int | None

    def raw_keys(self, table_id: TableId, *, is_unsigned: bool) -> tuple[tuple[bytes, bytes], ...]:
        """Return the raw ``[start, end)`` of the records of one physical table: one range or two, ascending. The end of
        its records is never among them.

        Raises:
            ValueError: a bound is no value of such a key, or no key is within, for people.
        """
        lowest, end = (0, 2 * _HALF) if is_unsigned else (-_HALF, _HALF)
        for bound in (self.start, self.end):
            if bound is not None and not lowest <= bound <= end:
                kind = "an unsigned" if is_unsigned else "a signed"
                raise ValueError(f"{bound} is no value of {kind} integer key")
        since = lowest if self.start is None else self.start
        until = end if self.end is None else self.end
        if since >= until:
            raise ValueError("no key can be in the range")
        upper = [_raw_keys(table_id, max(since, _HALF) - 2 * _HALF, until - 2 * _HALF)] if until > _HALF else []
        lower = [_raw_keys(table_id, since, min(until, _HALF))] if since < _HALF else []
        return (*upper, *lower)


def _raw_keys(table_id: TableId, since: int, until: int) -> tuple[bytes, bytes]:
    end = row_key(table_id, _HALF - 1) + b"\0" if until == _HALF else row_key(table_id, until)
    return row_key(table_id, since), end


def parse_handle_range(text: str) -> HandleRange:
    """Read ``START:END``.

    Raises:
        ValueError: it is none, for people.

    >>> parse_handle_range("-5:")
    HandleRange(start=-5, end=None)
    """
    match = _FORM.fullmatch(text)
    if match is None or text == ":":
        raise ValueError("a range of keys is START:END of whole numbers, END not included; one of them may be left out")
    start, end = (None if bound is None else int(bound) for bound in match.groups())
    if start is not None and end is not None and start >= end:
        raise ValueError(f"the range is empty: {start} is not below {end}")
    return HandleRange(start, end)
