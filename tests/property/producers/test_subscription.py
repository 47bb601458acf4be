"""One span under random region events, against a model that keeps one ts for each single key.

A world of regions splits, merges, moves its borders; registrations end at any moment and are locked again from views of
the regions that may be old; resolved ts come for any of them, in lies of the past too. At every moment: no two
registrations share a key, the span is never told a ts that a key has not reached, its ts never goes back, and a range
is registered from the least ts of its keys. Left alone, the span is registered whole.
"""

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from producers.pull.core.match.log_rows import LogRows
from producers.pull.core.regions.region_map import KEY_END, RegionInfo, covering_prefix
from producers.pull.core.regions.request_ids import RequestIds
from producers.pull.core.regions.span_frontier import EncodedRange
from producers.pull.core.regions.stream_table import StreamTable
from producers.pull.core.regions.subscription import Registration, Retry, Subscription, joined
from schemas.ids import RegionId, TableId, Ts
from schemas.proto import cdcpb_pb2
from schemas.tidb.codec import encode_bytes
from schemas.tidb.spans import TableSpan

KEYS = 10
SPAN = TableSpan(TableId(1), b"k0", b"k9z")
SPAN_RANGE = EncodedRange(*SPAN.encoded)
INITIALIZED = cdcpb_pb2.Event.Row(type=cdcpb_pb2.Event.INITIALIZED)
START_TS = Ts(10)


def key(at: int) -> bytes:
    """The border before key ``at``; 0 and KEYS are the ends of all keys."""
    return b"" if at == 0 else KEY_END if at == KEYS else encode_bytes(b"k%d" % at)


def keys_of(wanted: EncodedRange) -> list[int]:
    return [at for at in range(KEYS) if wanted.start <= max(key(at), SPAN_RANGE.start) < wanted.end]


class SpanMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.regions = [
            RegionInfo(region_id=RegionId(1), range=EncodedRange(key(0), KEY_END), version=1, conf_ver=1, leader=None)
        ]
        self.borders = {1: (0, KEYS)}
        self.next_region, self.clock = 2, 10
        self.subscription = Subscription(SPAN, START_TS, RequestIds())
        self.table = StreamTable(multiplexed=True)
        self.reached = [int(START_TS)] * KEYS
        self.promised_ts = int(START_TS)
        self.at_locator = [Retry(SPAN_RANGE)]
        self.old_views: list[list[RegionInfo]] = []
        self.ended: list[Registration] = []

    def _cover(self, borders: dict[int, tuple[int, int]], versions: dict[int, int]) -> None:
        self.old_views = [*self.old_views[-2:], self.regions]
        self.borders = borders
        self.regions = sorted(
            (
                RegionInfo(
                    region_id=RegionId(number),
                    range=EncodedRange(key(low), key(high)),
                    version=versions[number],
                    conf_ver=1,
                    leader=None,
                )
                for number, (low, high) in borders.items()
            ),
            key=lambda region: region.range.start,
        )

    def _versions(self) -> dict[int, int]:
        return {region.region_id: region.version for region in self.regions}

    @rule(which=st.integers(0, 20), at=st.integers(1, KEYS - 1))
    def split(self, which: int, at: int) -> None:
        number = sorted(self.borders)[which % len(self.borders)]
        low, high = self.borders[number]
        if low < at < high:
            versions = self._versions()
            versions[number] = versions[self.next_region] = versions[number] + 1
            self._cover(self.borders | {self.next_region: (low, at), number: (at, high)}, versions)
            self.next_region += 1

    @rule(which=st.integers(0, 20), keep_left=st.booleans())
    def merge(self, which: int, keep_left: bool) -> None:
        if len(self.regions) == 1:
            return
        at = which % (len(self.regions) - 1)
        left, right = self.regions[at], self.regions[at + 1]
        kept, gone = (left, right) if keep_left else (right, left)
        versions = self._versions()
        versions[kept.region_id] = max(left.version, right.version) + 1
        borders = dict(self.borders)
        borders[kept.region_id] = (self.borders[left.region_id][0], self.borders[right.region_id][1])
        del borders[gone.region_id], versions[gone.region_id]
        self._cover(borders, versions)

    @precondition(lambda self: self.at_locator)
    @rule(which=st.integers(0, 20), age=st.integers(0, 3))
    def locate(self, which: int, age: int) -> None:
        retry = self.at_locator.pop(which % len(self.at_locator))
        views = [*self.old_views, self.regions]
        view = covering_prefix(views[max(0, len(views) - 1 - age)], retry.range.start)
        before = list(self.reached)
        locked = self.subscription.lock_for(
            retry, [region for region in view if region.range.intersect(retry.range)], 0.0
        )
        for made in locked.registrations:
            covered = keys_of(made.lock.range)
            assert made.checkpoint_ts == min(before[at] for at in covered)
            for at in covered:  # it is scanned from there: what was known above counts no more
                self.reached[at] = made.checkpoint_ts
            self.table.add(made)
        self.at_locator += locked.retries

    @rule(low=st.integers(0, KEYS - 1), length=st.integers(1, KEYS), age=st.integers(0, 3))
    def locate_twice(self, low: int, length: int, age: int) -> None:
        """A range that somebody has already, or has asked for: it must end as stale, or wait."""
        wanted = EncodedRange(key(low), key(min(low + length, KEYS))).intersect(SPAN_RANGE)
        if wanted is not None:
            self.at_locator.append(Retry(wanted))
            self.locate(len(self.at_locator) - 1, age)

    @rule()
    def locate_all(self) -> None:
        for _ in range(len(self.at_locator)):
            self.locate(0, 0)

    @precondition(lambda self: len(self.table) > 0)
    @rule(but=st.integers(0, 20))
    def initialize(self, but: int) -> None:
        for at, registration in enumerate(list(self.table)):
            if at != but and not registration.matcher.initialized:
                assert not [change for part in registration.parts(LogRows([INITIALIZED])) for change in part]
                self.subscription.initialize(registration)
                self.table.initialize(registration)

    @precondition(lambda self: len(self.table) > 0)
    @rule(which=st.integers(0, 20), bits=st.integers(0, 2**12 - 1), back=st.integers(0, 6), vector=st.booleans())
    def resolve(self, which: int, bits: int, back: int, vector: bool) -> None:
        """A round for one request id: some of its regions, and some that are none of its own or long gone."""
        self.clock += 1
        live = list(self.table)
        request_id, ts = live[which % len(live)].request_id, self.clock - back
        ids = sorted({registration.region.region_id for registration in [*live, *self.ended[-5:]]})
        regions = [number for at, number in enumerate(ids) if bits >> at & 1]
        self.table.resolve(request_id, regions * (30 if vector else 1), Ts(ts))
        for registration in live:
            if (
                registration.request_id == request_id
                and registration.region.region_id in regions
                and registration.matcher.initialized
            ):
                for at in keys_of(registration.lock.range):
                    self.reached[at] = max(self.reached[at], ts)

    @precondition(lambda self: len(self.table) > 0)
    @rule(bits=st.integers(1, 2**8 - 1), fault=st.booleans())
    def end(self, bits: int, fault: bool) -> None:
        gone = [registration for at, registration in enumerate(self.table) if bits >> at & 1]
        for registration in gone:
            self.table.remove(registration)
        retries = self.subscription.release_all(gone, fault=fault)
        self.ended += gone
        self.at_locator += joined(retries) if len(gone) > 1 else retries

    @invariant()
    def promises_hold(self) -> None:
        locks = self.subscription.frontier.locked()
        covered = sorted((lock.range for lock in locks), key=lambda registration: registration.start)
        assert all(left.end <= right.start for left, right in itertools.pairwise(covered))
        assert {id(registration.lock) for registration in self.table} == {id(lock) for lock in locks}
        for lock in locks:
            assert {lock.resolved_ts} == {self.reached[at] for at in keys_of(lock.range)}
        resolved_ts = self.subscription.frontier.resolved_ts()
        assert resolved_ts == min(self.reached)
        assert self.subscription.initialized == sum(registration.matcher.initialized for registration in self.table)
        self.promised_ts = max(self.promised_ts, resolved_ts)
        assert resolved_ts >= self.promised_ts, "the span's resolved ts went back"
        # No part is forgotten: each is locked, waits, or is at the locator.
        parts = [*covered, *(retry.range for retry in [*self.at_locator, *self.subscription.waiting])]
        assert {at for part in parts for at in keys_of(part)} == set(range(KEYS))

    def teardown(self) -> None:
        """Trouble ends: every registration whose region has changed is ended, and everything locked by the new view."""
        for _ in range(30):
            true = {region.region_id: region for region in self.regions}
            for registration in list(self.table):
                now = true.get(registration.region.region_id)
                if now is None or now.version != registration.region.version:
                    self.table.remove(registration)
                    self.at_locator += self.subscription.release(registration)
            self.at_locator += self.subscription.waiting
            self.subscription.waiting = []
            while self.at_locator:
                self.old_views = []
                self.locate(0, 0)
        locked = [at for registration in self.table for at in keys_of(registration.lock.range)]
        assert sorted(locked) == list(range(KEYS))


SpanMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
test_span_under_any_region_events_keeps_its_promises = SpanMachine.TestCase
