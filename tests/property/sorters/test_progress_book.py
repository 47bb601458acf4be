"""The book of a service's entries: whatever happens, the nodes as written hold what was put, and nothing else."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from schemas.ids import Ts
from schemas.nodes.sorter_service import ENTRIES_MAX, FeedEntry
from sorters.core.service.progress_book import ProgressBook, in_transactions, key_of


def entry(number: int, checkpoint_ts: int = 1) -> FeedEntry:
    return FeedEntry(
        namespace="default",
        changefeed_id=f"feed{number}",
        created_zxid=7,
        epoch=0,
        revision=1,
        checkpoint_ts=Ts(checkpoint_ts),
        resolved_ts=Ts(checkpoint_ts),
    )


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(0, 300), st.integers(1, 5)),
            st.tuples(st.just("drop"), st.integers(0, 300), st.just(0)),
            st.tuples(st.just("write"), st.just(0), st.just(0)),
        ),
        max_size=60,
    ),
    st.integers(0, 300),
)
def test_nodes_as_written_hold_what_was_put(steps: list[tuple[str, int, int]], stored: int) -> None:
    nodes: dict[int, list[FeedEntry]] = {}
    for number in range(stored):
        nodes.setdefault(number // ENTRIES_MAX, []).append(entry(number))
    model = {number: entry(number) for number in range(stored)}
    book = ProgressBook(nodes)
    for what, number, checkpoint_ts in [*steps, ("write", 0, 0)]:
        if what == "put":
            model[number] = entry(number, checkpoint_ts)
            book.put(model[number])
        elif what == "drop":
            model.pop(number, None)
            book.drop(key_of(entry(number)))
        else:
            for at, (change, entries) in book.dirty().items():
                nodes[at] = list(entries)
                book.written(at, change)
            assert book.dirty() == {}
    written = [each for entries in nodes.values() for each in entries]
    assert sorted(written, key=key_of) == sorted(model.values(), key=key_of)
    assert sorted(book.entries, key=key_of) == sorted(model.values(), key=key_of)
    assert max(map(len, nodes.values()), default=0) <= ENTRIES_MAX


def test_what_changes_while_it_is_written_stays_dirty() -> None:
    book = ProgressBook()
    book.put(entry(1))
    (change, _) = book.dirty()[0]
    book.put(entry(1, 9))
    book.written(0, change)
    assert book.dirty()[0][1] == (entry(1, 9),)


def test_an_entry_that_is_as_it_was_makes_nothing_dirty() -> None:
    book = ProgressBook({0: [entry(1)]})
    book.put(entry(1))
    assert book.dirty() == {}


@given(st.lists(st.integers(0, 12), max_size=20), st.integers(1, 20))
def test_transactions_hold_all_nodes_in_order_and_no_more_bytes_than_may_be(sizes: list[int], bytes_max: int) -> None:
    nodes = {number: bytes(size) for number, size in enumerate(sizes)}
    parts = in_transactions(nodes, bytes_max)
    assert [pair for part in parts for pair in part.items()] == list(nodes.items())
    assert parts and (all(parts) or parts == [{}])
    assert all(len(part) == 1 or sum(map(len, part.values())) <= bytes_max for part in parts)
    joined = [len(b"".join([*first.values(), *second.values()][: len(first) + 1])) for first, second in pairs(parts)]
    assert all(size > bytes_max for size in joined), "no transaction too many"


def pairs(parts: list[dict[int, bytes]]) -> list[tuple[dict[int, bytes], dict[int, bytes]]]:
    return list(itertools.pairwise(parts))
