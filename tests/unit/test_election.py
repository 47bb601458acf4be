"""Who waits for an election, when requests go with their connection."""

from typing import cast

import pytest
from kazoo.exceptions import ConnectionLoss, NoAuthError

from consumers.control.cluster import election as elections
from consumers.control.cluster.election import Election
from edges.zookeeper.session import Session
from schemas.ids import CaptureId
from schemas.nodes.changefeed import ZkPaths
from tests.support.stored_zookeeper import MemorySession

PATHS = ZkPaths("c")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> MemorySession:
    monkeypatch.setattr(elections, "RECHECK_S", 0.0)
    return MemorySession()


def failing_first(made: MemorySession, error: Exception, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the first listing fail; return what is asked."""
    asked: list[str] = []
    real = made.client.get_children

    def get_children(path: str) -> list[str]:
        asked.append(path)
        if len(asked) == 1:
            raise error
        return real(path)

    monkeypatch.setattr(made.client, "get_children", get_children)
    return asked


def test_candidate_asks_again_when_the_connection_was_lost(
    made: MemorySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = failing_first(made, ConnectionLoss(), monkeypatch)
    over = iter([False, False, True])
    election = Election(cast(Session, made), PATHS, CaptureId("me"))
    monkeypatch.setattr(election, "_next_revision", lambda: 7)
    assert election.campaign(lambda: next(over)) == 7
    assert len(asked) == 2


def test_candidate_fails_by_what_another_request_will_not_mend(
    made: MemorySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_first(made, NoAuthError(), monkeypatch)
    with pytest.raises(NoAuthError):
        Election(cast(Session, made), PATHS, CaptureId("me")).campaign()
