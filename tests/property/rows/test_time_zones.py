"""Every zone around every change of its clocks: rows at once, one by one, and back, against the standard library."""

from datetime import UTC, datetime, timedelta
from importlib import resources
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas.tidb.packed_time import datetime_text, pack_time, text_in_zone
from schemas.tidb.packed_time import in_zone as one_in_zone
from schemas.tidb.time_zone import load_zone, zone_names
from sorters.core.columnar.times import datetime_texts, in_zone, utc_of
from sorters.core.encode.debezium.values import timestamp_json

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
AROUND_S = (-3601, -1801, -901, -1, 0, 1, 899, 1799, 3599, 3600, 7199)


def oracle_of(name: str) -> ZoneInfo:
    """Return the standard library's zone, by the database that is installed with us: a machine's own may be of another
    year, and tell another past.
    """
    with resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


def packed(moment: datetime) -> int:
    return pack_time(
        moment.year, moment.month, moment.day, moment.hour, moment.minute, moment.second, moment.microsecond
    )


def changes_of(zone: ZoneInfo, year: int) -> list[int]:
    """Return the seconds since 1970 at which the zone's offset changes in a year."""
    start = int((datetime(year, 1, 1, tzinfo=UTC) - EPOCH).total_seconds())
    marks = range(start, start + 366 * 86_400, 3600)
    offsets = [datetime.fromtimestamp(mark, zone).utcoffset() for mark in marks]
    changes = []
    for number in range(1, len(marks)):
        if offsets[number] != offsets[number - 1]:
            low, high = marks[number - 1], marks[number]
            while high - low > 1:
                middle = (low + high) // 2
                is_old = datetime.fromtimestamp(middle, zone).utcoffset() == offsets[number - 1]
                low, high = (middle, high) if is_old else (low, middle)
            changes.append(high)
    return changes


@given(
    name=st.sampled_from(sorted(zone_names())),
    year=st.integers(1971, 2037),
    others=st.lists(st.integers(86_400, 2**31 - 86_400), min_size=1, max_size=20),
)
@example(name="Africa/Monrovia", year=1972, others=[86_400])
@example(name="Australia/Lord_Howe", year=2024, others=[86_400])
@example(name="Europe/Berlin", year=2024, others=[86_400])
@example(name="America/New_York", year=2024, others=[86_400])
@example(name="Pacific/Apia", year=2011, others=[86_400])
@example(name="Mexico/BajaNorte", year=1974, others=[126_698_400])
@example(name="America/St_Johns", year=2007, others=[86_400 * 10_000])
@example(name="Antarctica/Casey", year=2022, others=[86_400 * 10_000])
def test_moments_move_into_a_zone_and_back_as_the_standard_library_moves_them(
    name: str, year: int, others: list[int]
) -> None:
    zone, oracle = load_zone(name), oracle_of(name)
    seconds = [*others, *(change + around for change in changes_of(oracle, year) for around in AROUND_S)]
    moments = [EPOCH + timedelta(seconds=second, microseconds=7) for second in seconds]
    shown = [moment.astimezone(oracle).replace(tzinfo=None) for moment in moments]
    expected = [packed(local) for local in shown]
    assert in_zone(np.array([packed(moment) for moment in moments], np.uint64), zone).tolist() == expected
    assert [one_in_zone(packed(moment), zone) for moment in moments] == expected
    texts = [text_in_zone(datetime_text(packed(moment), 6), zone) for moment in moments]
    assert texts == [f"{local:%Y-%m-%d %H:%M:%S}.{local.microsecond:06d}" for local in shown]
    assert datetime_texts(in_zone(np.array(list(map(packed, moments)), np.uint64), zone), 6).to_pylist() == [
        text.encode() for text in texts
    ]
    local = np.array([int((local.replace(tzinfo=UTC) - EPOCH).total_seconds()) for local in shown], np.int64)
    back = utc_of(local, zone).tolist()
    for second, moment, at_once, text in zip(seconds, shown, back, texts, strict=True):
        twice = {
            int((moment.replace(tzinfo=oracle, fold=fold).astimezone(UTC) - EPOCH).total_seconds()) for fold in (0, 1)
        }
        assert at_once in twice and (len(twice) > 1 or at_once == second)
        shown_utc = f'"{EPOCH + timedelta(seconds=at_once):%Y-%m-%dT%H:%M:%S}.{moment.microsecond:06d}Z"'
        assert timestamp_json(text.encode(), zone) == shown_utc.encode()


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("Europe/Berlin", b"2024-10-27 02:30:00", b'"2024-10-27T01:30:00Z"'),
        ("America/New_York", b"2024-11-03 01:30:00", b'"2024-11-03T05:30:00Z"'),
        ("Atlantic/Azores", b"2024-10-27 00:30:00", b'"2024-10-27T00:30:00Z"'),
    ],
)
def test_the_hour_that_clocks_show_twice_is_read_as_gos_time_date_reads_it(
    name: str, text: bytes, expected: bytes
) -> None:
    assert timestamp_json(text, load_zone(name)) == expected
