"""Region errors of unary calls: what each does to what is known of the region."""

import pytest

from producers.pull.core.regions.call_errors import CallDecision, decide_call
from schemas.proto import errorpb_pb2, metapb_pb2


def error(kind: str) -> errorpb_pb2.Error:
    """Return an error with one empty field."""
    made = errorpb_pb2.Error(message="said")
    getattr(made, kind).SetInParent()
    return made


@pytest.mark.parametrize(
    ("kind", "keep"),
    [
        ("not_leader", False),
        ("region_not_found", False),
        ("epoch_not_match", False),
        ("key_not_in_region", False),
        ("store_not_match", False),
        ("server_is_busy", True),
        ("stale_command", True),
        ("read_index_not_ready", True),
        ("data_is_not_ready", True),
    ],
)
def test_call_error_of_each_kind_keeps_or_drops_the_region(kind: str, keep: bool) -> None:
    assert decide_call(error(kind)) == CallDecision(kind=kind, keep=keep)


def test_call_error_names_the_leader_then_it_is_believed() -> None:
    moved = errorpb_pb2.Error(not_leader=errorpb_pb2.NotLeader(leader=metapb_pb2.Peer(id=11, store_id=3)))
    assert decide_call(moved) == CallDecision(kind="not_leader", keep=True, new_leader=3)  # type: ignore[arg-type]


def test_call_error_busy_says_how_long_within_reason() -> None:
    busy = errorpb_pb2.Error(server_is_busy=errorpb_pb2.ServerIsBusy(backoff_ms=1 << 40))
    assert decide_call(busy).wait_ms == 600_000


def test_call_error_without_a_field_asks_pd() -> None:
    assert decide_call(errorpb_pb2.Error(message="new")) == CallDecision(kind="unknown_error", keep=False)
