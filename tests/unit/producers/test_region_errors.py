"""Each row of docs/formats/cdcpb.md §5."""

import pytest

from producers.pull.core.regions.region_errors import (
    ClusterMismatchError,
    DuplicateRequestError,
    RecoveryStep,
    VersionIncompatibleError,
    backoff_ms,
    decide,
)
from schemas.proto import cdcpb_pb2, errorpb_pb2, metapb_pb2


def test_region_error_not_leader_with_hint_then_the_same_region_at_the_new_store() -> None:
    hint = errorpb_pb2.NotLeader(region_id=1, leader=metapb_pb2.Peer(id=5, store_id=4))
    made = decide(cdcpb_pb2.Error(not_leader=hint))
    assert (made.step, made.new_leader) == (RecoveryStep.REGISTER, 4)


@pytest.mark.parametrize(
    "error",
    [
        cdcpb_pb2.Error(not_leader=errorpb_pb2.NotLeader(region_id=1)),
        cdcpb_pb2.Error(not_leader=errorpb_pb2.NotLeader(region_id=1, leader=metapb_pb2.Peer())),
        cdcpb_pb2.Error(epoch_not_match=errorpb_pb2.EpochNotMatch()),
        cdcpb_pb2.Error(region_not_found=errorpb_pb2.RegionNotFound(region_id=1)),
    ],
)
def test_region_error_when_the_region_may_be_elsewhere_then_the_range_is_located_again(error: cdcpb_pb2.Error) -> None:
    made = decide(error)
    assert (made.step, made.new_leader, made.wait_ms) == (RecoveryStep.LOCATE, None, 0)


def test_region_error_busy_then_it_waits_as_long_as_the_server_asks_but_not_for_ever() -> None:
    busy = errorpb_pb2.ServerIsBusy(reason="too many scans", backoff_ms=1234)
    assert decide(cdcpb_pb2.Error(server_is_busy=busy)).wait_ms == 1234
    busy.backoff_ms = 10**9
    made = decide(cdcpb_pb2.Error(server_is_busy=busy))
    assert (made.step, made.wait_ms) == (RecoveryStep.REGISTER, 600_000)
    assert "too many scans" in made.reason


@pytest.mark.parametrize("error", [cdcpb_pb2.Error(congested=cdcpb_pb2.Congested(region_id=1)), cdcpb_pb2.Error()])
def test_region_error_congested_or_unknown_then_the_same_region_again(error: cdcpb_pb2.Error) -> None:
    assert decide(error).step is RecoveryStep.REGISTER


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (cdcpb_pb2.Error(duplicate_request=cdcpb_pb2.DuplicateRequest(region_id=1)), DuplicateRequestError),
        (cdcpb_pb2.Error(compatibility=cdcpb_pb2.Compatibility(required_version="9.0.0")), VersionIncompatibleError),
        (cdcpb_pb2.Error(cluster_id_mismatch=cdcpb_pb2.ClusterIDMismatch(current=1)), ClusterMismatchError),
    ],
)
def test_region_error_that_no_retry_mends_then_it_fails_with_its_code(error: cdcpb_pb2.Error, kind: type) -> None:
    made = decide(error)
    assert made.step is RecoveryStep.FAIL
    assert isinstance(made.error, kind)


def test_region_error_backoff_then_it_doubles_between_its_bounds() -> None:
    assert [backoff_ms(attempt, 0.999) for attempt in (0, 1, 2, 30)] == [49, 99, 199, 1999]
    assert backoff_ms(30, 0.0) == 1000
