"""An event read by column is the event read by row: whatever rows leave out, in whatever order their fields stand."""

from random import Random
from typing import Any, get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from producers.pull.core.match.change_columns import Change
from producers.pull.core.match.log_rows import COLUMNS_MIN, BytesField, LogRows, NumberField
from producers.pull.core.match.matcher import (
    COMMIT,
    COMMITTED,
    INITIALIZED,
    PREWRITE,
    ROLLBACK,
    Matcher,
    PrewriteNotMatchError,
)
from producers.pull.core.regions.feed_message import FeedMessage
from schemas.errors import BusError
from schemas.ids import RegionId, Ts
from schemas.proto import cdcpb_pb2
from tests.support.upstream.log_rows import DELETE, PUT, Row

SEEDS = st.integers(0, 2**32)
NUMBERS, STRINGS = get_args(NumberField), get_args(BytesField)
UNKNOWN_FIELDS = (b"\x40\x07", b"\x78\x01", b"\x7a\x03abc")
"""expire_ts_unix_secs, which nobody reads; field 15 as a number and as a string."""


def field(random: Random, name: str) -> bytes:
    """One field of a row on the wire; nothing where it is zero or empty."""
    value: Any = random.choice((0, 1, 5, 1 << 40, (1 << 63) - 1))
    if name in STRINGS:
        value = random.choice((b"", b"k", b"x" * 200))
    elif name in ("type", "op_type"):
        value = random.choice((0, 1, 2, 3, 4, 7))
    return cdcpb_pb2.Event.Row(**{name: value}).SerializeToString()


def row(random: Random, names: list[str], twice: bool) -> bytes:
    parts = [field(random, name) for name in names]
    if twice:  # or once; the last one counts
        parts += [cdcpb_pb2.Event.Row(start_ts=ts).SerializeToString() for ts in (8, 9)[: random.randint(1, 2)]]
    parts += random.sample(UNKNOWN_FIELDS, random.randint(0, 2))
    random.shuffle(parts)
    return b"".join(parts)


def length_delimited(number: int, content: bytes) -> bytes:
    size, out = len(content), bytearray([number << 3 | 2])
    while size > 127:
        out.append(size & 127 | 128)
        size >>= 7
    return bytes([*out, size]) + content


def event(random: Random) -> bytes:
    """Each field in all rows, in some, or in none; now and then one stands twice in a row."""
    often = {name: random.choice((0.0, 0.5, 1.0, 1.0)) for name in (*NUMBERS, *STRINGS)}
    twice = random.random() < 0.2
    if twice:
        often["start_ts"] = 0.0
    rows = [
        row(random, [name for name, share in often.items() if random.random() < share], twice)
        for _ in range(random.choice((0, 1, COLUMNS_MIN - 1, COLUMNS_MIN, 40)))
    ]
    cut = random.choice((0, len(rows) // 2))
    parts = [b"".join(length_delimited(1, encoded) for encoded in some) for some in (rows[:cut], rows[cut:])]
    return b"".join(length_delimited(3, part) for part in parts) + b"\x08\x07"


@settings(max_examples=300, deadline=None)
@given(SEEDS)
def test_rows_by_column_when_a_message_is_of_any_form_then_each_field_is_what_the_row_has(seed: int) -> None:
    random = Random(seed)
    encoded = b"".join(length_delimited(1, event(random)) for _ in range(random.randint(1, 4)))
    message = FeedMessage(encoded)
    for number, parsed in enumerate(cdcpb_pb2.ChangeDataEvent.FromString(encoded).events):
        by_row, rows = list(parsed.entries.entries), message.rows(number, message.parsed.events[number])
        assert list(rows) == by_row
        for name in NUMBERS:
            wanted = [getattr(row, name) for row in by_row]
            assert rows.numbers(name) == wanted, name
            assert rows.common(name) == (wanted[0] if len(set(wanted)) == 1 else None)
        for name in STRINGS:
            assert rows.strings(name) == [getattr(row, name) for row in by_row], name


def transaction_events(random: Random) -> list[list[Row]]:
    """Events of one kind and transaction; some of them refused, some with rows that are not wanted."""
    out = [[Row(INITIALIZED, op_type=0)]]
    for start_ts in range(100, 100 + 10 * random.randint(1, 4), 10):
        keys = random.sample([b"k%02d" % at for at in range(30)], random.randint(8, 30))
        ops = [random.choice((PUT, PUT, DELETE)) for _ in keys]
        values = [random.choice((b"", b"v" * 30)) for _ in keys]
        olds = [random.choice((b"", b"o")) for _ in keys] if random.random() < 0.5 else [b""] * len(keys)
        commit_ts = start_ts + random.choice((1, 5, 5, 5, -99))
        if random.random() < 0.1:
            keys[0] = b"outside"
        if random.random() < 0.1:
            ops[-1] = 7
        columns = list(zip(keys, ops, values, olds, strict=True))
        if random.random() < 0.4:
            out.append([Row(COMMITTED, start_ts, commit_ts, key, value, old, op) for key, op, value, old in columns])
            continue
        out.append([Row(PREWRITE, start_ts, 0, key, value, old, op) for key, op, value, old in columns])
        random.shuffle(columns)
        some = columns[: random.choice((len(columns), len(columns), 8))]
        kind = random.choice((COMMIT, COMMIT, COMMIT, ROLLBACK))
        ended_ts = commit_ts if kind == COMMIT else 0
        out.append([Row(kind, start_ts, ended_ts, key, b"", b"", op, random.choice((0, 3))) for key, op, _, _ in some])
    return out


def by_wire(rows: list[Row]) -> LogRows:
    entries = cdcpb_pb2.Event.Entries(entries=[cdcpb_pb2.Event.Row(**row._asdict()) for row in rows])
    message = FeedMessage(cdcpb_pb2.ChangeDataEvent(events=[cdcpb_pb2.Event(entries=entries)]).SerializeToString())
    return message.rows(0, message.parsed.events[0])


def fed(matcher: Matcher, rows: LogRows) -> list[Change] | tuple[type[BusError], dict[str, object]]:
    try:
        return [change for part in matcher.parts(rows) for change in part]
    except BusError as error:
        return type(error), error.fields


@settings(max_examples=300, deadline=None)
@given(SEEDS)
def test_matcher_fed_by_column_then_it_emits_and_refuses_what_it_does_by_row(seed: int) -> None:
    by_row, by_column = (Matcher(RegionId(1), b"k", b"l", start_ts=Ts(20), checkpoint_ts=Ts(20)) for _ in range(2))
    for rows in transaction_events(Random(seed)):
        wanted = fed(by_row, LogRows(rows))
        assert fed(by_column, by_wire(rows)) == wanted
        if isinstance(wanted, tuple) and wanted[0] is not PrewriteNotMatchError:
            break  # the registration would end
    assert by_row.held_bytes() == by_column.held_bytes()
