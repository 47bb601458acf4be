"""Scans of table images over gRPC and into a real Kafka: what lands is what TiDB shows at the barrier ts."""

import random
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from compose.stack.local import Addresses
from consumers.control.core.frontier.frontier import first_record
from edges.kafka.clients import kafka_admin
from producers.pull.core.images.pace import BURST_S
from producers.pull.images.settings import ImageScanSettings, ReadFrom
from producers.pull.puller import Puller, PullerSettings
from producers.region_server.core import chaos
from producers.region_server.core.store.commands import Mutation
from producers.region_server.core.store.refusals import CommandRefusedError
from producers.region_server.core.store.transactions import ServerTransaction
from producers.region_server.server import RegionServer
from schemas.ids import StoreId, Ts, UpstreamId
from schemas.rawlog.images import NO_IMAGES, KeyRange, ScanResult
from schemas.tidb.keys import row_key
from tests.support.upstream.image_scans import CAPTURE, TABLE, fill, landed_rows, ordered, rows_at, scanning

END = KeyRange.of_table(TABLE).end
SCANS_MIN, TROUBLED_S = 4, 15.0
"""In trouble a scan may stand until its time is up: what it has by then is compared, and one must come to the end."""
KINDS_OF_TROUBLE_MIN = 6
STALLED = "producer.image_scan_stalled"
"""It had nothing by then."""
WRITES_PAUSE_S = 0.01
"""Between five transactions: whoever writes must leave the scan some of the processor."""


def test_record_orders_a_scan_then_reports_have_its_result_until_the_barrier_is_gone(
    stack: Addresses, fresh_name: Callable[[str], str]
) -> None:
    with RegionServer(stores=3) as server:
        fill(server, 5_000, regions=4)
        start_ts = server.tso()
        puller = Puller(
            capture=CAPTURE,
            upstream=UpstreamId(fresh_name("u")),
            pd_address=server.pd_address,
            kafka=stack.kafka_access,
            schema_registry=stack.registry_access,
            settings=PullerSettings(keep_safe_point=False),
        )
        try:
            puller.start()
            assert puller.report().scans == ()
            topics = kafka_admin(stack.kafka_access.config()).list_topics(timeout=60).topics
            assert puller.topics.images not in topics, "without an image there is no topic"
            record = first_record(1, start_ts, puller.partitions)
            barrier_ts = server.tso()
            puller.published(replace(record, images=ordered(barrier_ts, version=1)))
            while not puller.report().scans:
                assert puller.landed.wait(180)
            (result,) = puller.report().scans or ()
            assert (result.failure, result.reached, result.rows) == ("", END, 5_000)
            rows = landed_rows(stack, puller.topics, result)
            assert rows == rows_at(server, barrier_ts)
            assert result.bytes == sum(len(key) + len(value) for key, value in rows.items())
            puller.published(replace(record, images=replace(NO_IMAGES, version=(1, 2))))
            assert puller.report().scans == ()
        finally:
            puller.stop()


def test_ten_minute_transaction_stalls_no_scan_and_commits_above_it(
    stack: Addresses, fresh_name: Callable[[str], str]
) -> None:
    with RegionServer(stores=3) as server, scanning(server, stack, UpstreamId(fresh_name("u"))) as rig:
        keys = fill(server, 3_000, regions=5)
        fresh = [row_key(TABLE, number) for number in range(10_000, 10_500)]

        def begin(_: object) -> ServerTransaction:
            writes = [Mutation("put", key, b"of a long transaction") for key in (*keys[::2], *fresh)]
            made = ServerTransaction(server.store, server.oracle.tso, writes, ttl_ms=600_000)
            made.prewrite()
            return made

        long = server.act(begin)
        barrier_ts = server.tso()
        rig.order(barrier_ts)
        result = rig.result(barrier_ts)
        assert (result.failure, result.reached, result.rows) == ("", END, 3_000)
        # It commits at a ts above the barrier, so what was read is what stands there for ever.
        assert server.act(lambda _: long.commit()) > barrier_ts
        assert landed_rows(stack, rig.topics, result) == rows_at(server, barrier_ts)
        later_ts = server.tso()
        rig.order(later_ts)
        later = rig.result(later_ts)
        assert later.rows == 3_500
        assert landed_rows(stack, rig.topics, later) == rows_at(server, later_ts)


def test_transactions_that_died_are_passed_by_and_a_committed_one_is_read_through(
    stack: Addresses, fresh_name: Callable[[str], str]
) -> None:
    with RegionServer(stores=3) as server, scanning(server, stack, UpstreamId(fresh_name("u"))) as rig:
        keys = fill(server, 200, regions=4)

        def leave(_: object) -> None:
            dead = ServerTransaction(
                server.store, server.oracle.tso, [Mutation("put", key, b"dead") for key in keys[::3]], ttl_ms=1
            )
            dead.prewrite()
            half = ServerTransaction(
                server.store, server.oracle.tso, [Mutation("delete", key) for key in keys[1::3]], ttl_ms=600_000
            )
            half.prewrite()
            half.commit_primary()

        server.act(leave)
        time.sleep(0.01)  # the time of the dead one is up
        barrier_ts = server.tso()
        rig.order(barrier_ts)
        result = rig.result(barrier_ts)
        assert (result.failure, result.reached) == ("", END)
        gone = {key for at, key in enumerate(keys) if at % 3 == 1}
        rows = landed_rows(stack, rig.topics, result)
        assert rows.keys() == set(keys) - gone
        assert b"dead" not in rows.values()
        rig.end_transactions()
        assert rows == rows_at(server, barrier_ts)


def _write_some(server: RegionServer, dice: random.Random) -> None:
    """Run one transaction of any kind over some rows of TABLE."""
    keys = {row_key(TABLE, dice.randrange(4_000)) for _ in range(dice.randrange(1, 6))}
    writes = [Mutation("put", key, b"w%d" % dice.randrange(1 << 30)) for key in sorted(keys)]
    if dice.random() < 0.3:
        writes[0] = Mutation("delete", writes[0].key)
    transaction = ServerTransaction(server.store, server.oracle.tso, writes)
    kind = dice.choice(["two", "async", "one", "dead"])
    try:
        if kind == "one":
            transaction.commit_at_once()
            return
        transaction.prewrite(async_commit=kind == "async")
    except CommandRefusedError:
        transaction.rollback()
        return
    if kind != "dead":
        transaction.commit_primary()
        if dice.random() < 0.7:
            transaction.commit_secondaries()
    elif dice.random() < 0.5:
        transaction.rollback()


@pytest.mark.parametrize(("seed", "read_from"), [(1, "leader"), (2, "follower"), (3, "stale")])
def test_scans_while_everybody_writes_and_the_cluster_is_in_trouble_are_exact(
    stack: Addresses, fresh_name: Callable[[str], str], seed: int, read_from: ReadFrom
) -> None:
    settings = ImageScanSettings(read_from=read_from, scan_s_max=TROUBLED_S)
    with (
        RegionServer(stores=3, replica_lag_ms=100, min_ts_interval_ms=50) as server,
        scanning(server, stack, UpstreamId(fresh_name("u")), settings) as rig,
    ):
        fill(server, 4_000, regions=6, size=20)
        dice, limits = random.Random(seed), chaos.ChaosLimits(pause_max_ms=100, regions_max=24)
        trouble = server.spawn(server.chaos.run(seed, 0.1, limits))
        results = list[ScanResult]()
        while (
            len(results) < SCANS_MIN
            or all(result.reached != END for result in results)
            or len({type(event) for event in server.chaos.performed}) < KINDS_OF_TROUBLE_MIN
        ):
            barrier_ts = server.tso()
            rig.order(barrier_ts)
            while not rig.scanner.results():
                for _ in range(5):
                    server.act(lambda _: _write_some(server, dice))
                time.sleep(WRITES_PAUSE_S)
            result = rig.result(barrier_ts)
            rig.order()
            if result.failure != STALLED:
                results.append(result)
        trouble.cancel()
        rig.end_transactions()
        for result in results:
            assert result.failure == "", result.reason
            assert landed_rows(stack, rig.topics, result) == rows_at(server, result.barrier_ts, result.reached)


def test_version_that_was_collected_is_refused_by_name(stack: Addresses, fresh_name: Callable[[str], str]) -> None:
    with (
        RegionServer(stores=1, gc_life_time_s=0.0, gc_interval_s=0.02) as server,
        scanning(server, stack, UpstreamId(fresh_name("u"))) as rig,
    ):
        fill(server, 10)
        barrier_ts = server.tso()
        while server.pd.gc_safe_point <= barrier_ts:
            time.sleep(0.01)
        rig.order(barrier_ts)
        result = rig.result(barrier_ts)
        assert result.failure == "producer.image_version_gone"
        assert str(barrier_ts) in result.reason


def test_quota_bounds_a_scan_which_then_ends_early(stack: Addresses, fresh_name: Callable[[str], str]) -> None:
    settings = ImageScanSettings(rows_per_s=2_000, scan_s_max=60.0)
    with (
        RegionServer(stores=1) as server,
        scanning(server, stack, UpstreamId(fresh_name("u")), settings) as rig,
    ):
        fill(server, 20_000)
        barrier_ts = server.tso()
        rig.order(barrier_ts)
        result = rig.result(barrier_ts)
        assert result.failure == ""
        slowed_s = settings.slowed_scan_s_max
        assert 0 < result.rows < 2_000 * (slowed_s + BURST_S) + 2_048 + 1  # rate, burst, and the page that overdraws
        assert landed_rows(stack, rig.topics, result) == rows_at(server, barrier_ts, result.reached)


def test_scan_that_ends_early_has_waited_for_what_it_has_read(
    stack: Addresses, fresh_name: Callable[[str], str]
) -> None:
    settings = ImageScanSettings(rows_per_s=100, scan_s_max=60.0)
    with (
        RegionServer(stores=1) as server,
        scanning(server, stack, UpstreamId(fresh_name("u")), settings) as rig,
    ):
        fill(server, 20_000)
        barrier_ts = server.tso()
        began_s = time.monotonic()
        rig.order(barrier_ts)
        result = rig.result(barrier_ts)
        assert 0 < result.rows <= 100 * (time.monotonic() - began_s + BURST_S)


def test_bytes_bound_then_the_rest_is_scanned_by_another_order(
    stack: Addresses, fresh_name: Callable[[str], str]
) -> None:
    with RegionServer(stores=1) as server, scanning(server, stack, UpstreamId(fresh_name("u"))) as rig:
        keys = fill(server, 1_000)
        barrier_ts = server.tso()
        rig.order(barrier_ts, bytes_max=10_000)
        result = rig.result(barrier_ts)
        rows = landed_rows(stack, rig.topics, result)
        assert result.reached == keys[len(rows) - 1] + b"\0"
        *_, last = sorted(rows.items())
        assert result.bytes >= 10_000 > result.bytes - len(last[0]) - len(last[1])


def test_barrier_is_withdrawn_in_mid_scan_then_it_is_forgotten_and_the_next_is_done(
    stack: Addresses, fresh_name: Callable[[str], str]
) -> None:
    settings = ImageScanSettings(scans_at_once=1, scan_s_max=600.0)
    with (
        RegionServer(stores=1) as server,
        scanning(server, stack, UpstreamId(fresh_name("u")), settings) as rig,
    ):
        fill(server, 100)
        (region,) = server.act(lambda store: list(store.regions))
        server.perform(chaos.LoseLeader(region.region_id, StoreId(1), 600_000))
        first_ts, second_ts = server.tso(), server.tso()
        rig.order(first_ts)
        rig.order(second_ts)
        assert rig.scanner.results() == ()
        server.perform(chaos.TransferLeader(region.region_id, StoreId(1)))
        assert rig.result(second_ts).rows == 100
        assert [result.barrier_ts for result in rig.scanner.results()] == [second_ts]


def test_region_without_a_leader_ends_a_scan_that_has_read_nothing_with_the_reason(
    stack: Addresses, fresh_name: Callable[[str], str]
) -> None:
    with (
        RegionServer(stores=1) as server,
        scanning(server, stack, UpstreamId(fresh_name("u")), ImageScanSettings(scan_s_max=0.5)) as rig,
    ):
        fill(server, 100)
        (region,) = server.act(lambda store: list(store.regions))
        server.perform(chaos.LoseLeader(region.region_id, StoreId(1), 60_000))
        barrier_ts = server.tso()
        rig.order(barrier_ts)
        result = rig.result(barrier_ts)
        assert result.failure == STALLED
        assert "leader" in result.reason


def test_row_larger_than_the_topic_takes_is_landed_in_parts(stack: Addresses, fresh_name: Callable[[str], str]) -> None:
    with RegionServer(stores=1) as server, scanning(server, stack, UpstreamId(fresh_name("u"))) as rig:
        fill(server, 3, size=20 << 20)
        barrier_ts = server.tso()
        rig.order(barrier_ts)
        result = rig.result(barrier_ts)
        assert (result.failure, result.rows) == ("", 3)
        assert result.offsets[1] - result.offsets[0] > 3
        assert landed_rows(stack, rig.topics, result) == rows_at(server, Ts(barrier_ts))
