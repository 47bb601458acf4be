"""What a task reads of a cut: a record that is none of the raw log is named by its place."""

from collections.abc import Iterator, Mapping

import pytest

from schemas.errors import CorruptDataError
from schemas.ids import Ts
from sorters.core.cut.cut import Cut
from sorters.cut.raw_records import raw_records


class OneBadRecord:
    """A log whose partition 1 holds, at offset 7, what somebody else has written there."""

    def read_all(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[tuple[int, int, bytes]]:
        start, end = ranges[1]
        if start <= 7 < end:
            yield 1, 7, b"\x00garbage"


def test_raw_record_that_is_none_is_named_by_partition_and_offset() -> None:
    cut = Cut(after_ts=Ts(1), upto_ts=Ts(9), start=(0, 5), end=(0, 9), may_repeat=False, ddl_end=0)
    with pytest.raises(CorruptDataError) as raised:
        list(raw_records(OneBadRecord(), cut, lambda _: None))
    assert (raised.value.fields["partition"], raised.value.fields["offset"]) == (1, 7)
