"""Who waits for an election, when requests go with their connection."""

from typing import cast

import pytest
from kazoo.exceptions import ConnectionLoss, NoAuthError

from consumers.control.cluster import election as elections
from consumers.control.cluster.election import Election
from edges.zookeeper.session import Session
from schemas.ids import CaptureId
from schemas.nodes.changefeed import ZkPaths
from tests.support.control.stored_zookeeper import MemorySession, Transaction

PATHS = ZkPaths("c")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> MemorySession:
    monkeypatch.setattr(elections, "RECHECK_S", 0.0)
    return MemorySession()


def unanswered(
    made: MemorySession, request: str, monkeypatch: pytest.MonkeyPatch, *, is_done: bool = True
) -> list[object]:
    """Let the connection go under the first such request, which ZooKeeper has done or not; return what is asked."""
    asked: list[object] = []
    real = getattr(made.client, request)

    def answer(*args: object, **options: object) -> object:
        asked.append(args)
        if len(asked) > 1:
            return real(*args, **options)
        if is_done:
            real(*args, **options)
        raise ConnectionLoss

    monkeypatch.setattr(made.client, request, answer)
    return asked


def campaign(made: MemorySession, looks: int = 6) -> int | None:
    """Return the revision that a candidate gets who is told to stop when it has looked so often whether it is."""
    over = iter([False] * looks)
    return Election(cast(Session, made), PATHS, CaptureId("me")).campaign(lambda: next(over, True))


def candidates(made: MemorySession) -> list[str]:
    return [path for path in made.client.nodes if path.startswith(f"{PATHS.election}/")]


@pytest.mark.parametrize("request_", ["get_children", "exists", "get"])
def test_candidate_asks_again_when_the_connection_was_lost(
    request_: str, made: MemorySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.client.put(f"{PATHS.election}/candidate-0000000000", b"gone")  # of no session: no candidate
    asked = unanswered(made, request_, monkeypatch)
    assert campaign(made) == 1
    assert len(asked) > 1


@pytest.mark.parametrize("is_done", [True, False])
def test_candidate_stands_once_though_its_creation_had_no_answer(
    is_done: bool, made: MemorySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    unanswered(made, "create", monkeypatch, is_done=is_done)
    assert campaign(made) == 1
    assert len(candidates(made)) == 1


def test_standing_node_of_another_session_is_not_ours(made: MemorySession) -> None:
    # A capture's session has ended, ZooKeeper does not know yet, and the capture is there again: it waits for itself.
    made.client.put(f"{PATHS.election}/candidate-0000000000", b"me", owner=made.client.client_id[0] + 1)
    assert campaign(made) is None
    assert len(candidates(made)) == 2


def test_candidate_that_is_stopped_while_it_asks_takes_no_revision(made: MemorySession) -> None:
    assert campaign(made, looks=1) is None
    assert not made.client.exists(PATHS.owner_rev)


def test_revision_that_was_taken_without_an_answer_is_left_out(
    made: MemorySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits: list[object] = []
    real = Transaction.commit

    def commit(transaction: Transaction) -> list[object]:
        done = real(transaction)
        commits.append(done)
        if len(commits) == 1:
            raise ConnectionLoss
        return done

    monkeypatch.setattr(Transaction, "commit", commit)
    assert campaign(made) == 2


def test_candidate_fails_by_what_another_request_will_not_mend(
    made: MemorySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: str) -> list[str]:
        raise NoAuthError

    monkeypatch.setattr(made.client, "get_children", refused)
    with pytest.raises(NoAuthError):
        campaign(made)
