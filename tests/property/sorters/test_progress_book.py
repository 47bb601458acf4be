"""The book of a service's entries: whatever happens, the nodes as written hold what was put, and nothing else."""

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from schemas.ids import Ts
from schemas.nodes.feed_figures import FeedFigures
from schemas.nodes.sorter_service import ENTRIES_MAX, FeedEntry
from sorters.core.service.progress_book import FeedKey, NodeKey, Part, ProgressBook, in_transactions, key_of

PROGRESS, FIGURES = NodeKey(Part.PROGRESS, 0), NodeKey(Part.FIGURES, 0)


def entry(number: int, checkpoint_ts: int = 1, proven: int = 0) -> FeedEntry:
    return FeedEntry(
        namespace="default",
        changefeed_id=f"feed{number}",
        created_zxid=7,
        epoch=0,
        revision=1,
        checkpoint_ts=Ts(checkpoint_ts),
        resolved_ts=Ts(checkpoint_ts),
        figures=FeedFigures(windows_proven=proven),
    )


class Written:
    """What a service's nodes hold: of entries, and apart from them of figures."""

    def __init__(self, stored: int) -> None:
        self.entries: dict[int, list[FeedEntry]] = {}
        for number in range(stored):
            self.entries.setdefault(number // ENTRIES_MAX, []).append(entry(number))
        self.figures: dict[int, dict[FeedKey, FeedFigures]] = {}

    def write(self, book: ProgressBook, *, are_figures_due: bool) -> None:
        for node, (change, entries) in book.dirty(are_figures_due=are_figures_due).items():
            if node.part is Part.PROGRESS:
                self.entries[node.number] = [replace(each, figures=FeedFigures()) for each in entries]
            else:
                self.figures[node.number] = {key_of(each): each.figures for each in entries}
            book.written(node, change)
        assert book.dirty(are_figures_due=are_figures_due) == {}

    def all_figures(self) -> dict[FeedKey, FeedFigures]:
        return {key: counted for figures in self.figures.values() for key, counted in figures.items()}

    def joined(self) -> list[FeedEntry]:
        figures = self.all_figures()
        joined = [
            replace(each, figures=figures.get(key_of(each), FeedFigures()))
            for entries in self.entries.values()
            for each in entries
        ]
        return sorted(joined, key=key_of)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(0, 300), st.integers(1, 5), st.integers(0, 2)),
            st.tuples(st.just("drop"), st.integers(0, 300), st.just(0), st.just(0)),
            st.tuples(st.sampled_from(["write", "write all"]), st.just(0), st.just(0), st.just(0)),
        ),
        max_size=60,
    ),
    st.integers(0, 300),
)
def test_nodes_as_written_hold_what_was_put(steps: list[tuple[str, int, int, int]], stored: int) -> None:
    nodes = Written(stored)
    model = {number: entry(number) for number in range(stored)}
    book = ProgressBook(nodes.entries)
    for what, number, checkpoint_ts, proven in [*steps, ("write all", 0, 0, 0)]:
        if what == "put":
            model[number] = entry(number, checkpoint_ts, proven)
            book.put(model[number])
        elif what == "drop":
            model.pop(number, None)
            book.drop(key_of(entry(number)))
        else:
            nodes.write(book, are_figures_due=what == "write all")
            standing = {key_of(each) for entries in nodes.entries.values() for each in entries}
            assert standing == {key_of(each) for each in model.values()}
            assert nodes.all_figures().keys() <= standing, "figures whose entry has gone"
    assert nodes.joined() == sorted(model.values(), key=key_of)
    assert sorted(book.entries, key=key_of) == sorted(model.values(), key=key_of)
    assert max(map(len, nodes.entries.values()), default=0) <= ENTRIES_MAX


def test_what_changes_while_it_is_written_stays_dirty() -> None:
    book = ProgressBook()
    book.put(entry(1))
    (change, _) = book.dirty(are_figures_due=True)[PROGRESS]
    book.put(entry(1, 9))
    book.written(PROGRESS, change)
    assert book.dirty(are_figures_due=True)[PROGRESS][1] == (entry(1, 9),)


def test_an_entry_that_is_as_it_was_makes_nothing_dirty() -> None:
    book = ProgressBook({0: [entry(1, proven=2)]})
    book.put(entry(1, proven=2))
    assert book.dirty(are_figures_due=True) == {}


def test_figures_alone_make_no_progress_dirty_and_wait_until_they_are_due() -> None:
    book = ProgressBook({0: [entry(1)]})
    book.put(entry(1, proven=2))
    assert book.dirty(are_figures_due=False) == {}
    assert list(book.dirty(are_figures_due=True)) == [FIGURES]


def test_figures_go_with_their_entry_whether_they_are_due_or_not() -> None:
    book = ProgressBook({0: [entry(1, proven=2), entry(2)]})
    book.drop(key_of(entry(1)))
    dirty = book.dirty(are_figures_due=False)
    assert [(node, entries) for node, (_, entries) in dirty.items()] == [
        (PROGRESS, (entry(2),)),
        (FIGURES, (entry(2),)),
    ]
    book.written(FIGURES, dirty[FIGURES][0])
    book.put(entry(2, proven=9))
    assert list(book.dirty(are_figures_due=False)) == [PROGRESS], "what is written is not due again"


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
