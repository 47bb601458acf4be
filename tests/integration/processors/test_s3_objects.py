"""S3 on moto, and what it is asked where it answers late, in part or not at all."""

from collections.abc import Iterator

import pytest

from consumers.processors.storage.store import LeasedStore, ObjectStore, StorageUnavailableError
from edges.storages import objects
from edges.zookeeper.session import LeaseLostError
from schemas.config.sink.storage_uri import parse_storage_uri
from tests.support.storages.aws import ask_s3, aws, s3_keys
from tests.support.storages.recording_proxy import Recording, Request, recorded

__all__ = ["aws"]

LONG = b"n" * (20 << 20)


@pytest.fixture
def server(aws: str) -> Iterator[Recording]:
    """The server, behind one that records what it is asked."""
    ask_s3(aws, "rows", "PUT")
    with recorded(aws.removeprefix("http://")) as recording:
        yield recording


def store_at(server: Recording, folder: str) -> ObjectStore:
    return ObjectStore(
        parse_storage_uri(f"s3://rows/{folder}?access-key=ak&secret-access-key=sk&endpoint={server.address}")
    )


def is_last_request(request: Request) -> bool:
    """Tell whether it lets an object show: the only one, or the end of an upload in parts."""
    return request.method == ("POST" if "uploadId=" in request.target else "PUT")


@pytest.mark.parametrize("content", [b"new", LONG], ids=["at once", "in parts"])
def test_object_is_not_sent_again_by_who_has_lost_its_lease_meanwhile(server: Recording, content: bytes) -> None:
    store, lost = store_at(server, f"late{len(content)}"), [False]

    def check() -> None:
        if lost[0]:
            raise LeaseLostError("gone")

    def busy(request: Request) -> tuple[int, bytes] | None:
        if not is_last_request(request):
            return None
        lost[0] = True  # and another processor writes the file
        server.answer = lambda _: None
        return 503, b"<Error><Code>SlowDown</Code></Error>"

    leased = LeasedStore(store, check)
    leased.put("d/file", [b"old"])
    server.answer = busy
    with pytest.raises(LeaseLostError):
        leased.put("d/file", [content])
    assert store.get("d/file") == b"old"
    lost[0] = False
    leased.put("d/file", [content])
    assert store.get("d/file") == content


def test_what_s3_refuses_for_a_moment_is_asked_for_again(server: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "_PAUSES_S", (0.0, 0.0))
    store, refused, asked = store_at(server, "again"), [500, 503], list[int]()

    def busy(_: Request) -> tuple[int, bytes] | None:
        return (refused.pop(), b"<Error><Code>InternalError</Code></Error>") if refused else None

    server.answer = busy
    store.put("file", [b"x"], lambda: asked.append(1))
    assert (refused, len(asked)) == ([], 3)
    for ask in (lambda: store.get("file"), lambda: store.remove_if(lambda _: False), lambda: store.put("l", [LONG])):
        refused += [500, 503]
        ask()
        assert refused == []
    assert (store.get("file"), store.get("l")) == (b"x", LONG)


def test_names_of_tables_are_no_patterns_when_old_objects_are_removed(server: Recording, aws: str) -> None:
    store = store_at(server, "[ab]")
    for path in ("d/t[1]/old", "d/t*/old", "d/t1/new"):
        store.put(path, [b"x"])
    beside = store_at(server, "a")
    for path in ("d/t[1]/old", "d/t*/old", "d/t1/old"):
        beside.put(path, [b"x"])
    assert store.remove_if(lambda path: path.endswith("old")) == 2
    assert [key for key in s3_keys(aws, "rows") if key.startswith("[ab]/")] == ["[ab]/d/t1/new"]
    assert len([key for key in s3_keys(aws, "rows") if key.startswith("a/")]) == 3


def test_old_objects_that_s3_does_not_remove_are_an_error(server: Recording) -> None:
    store = store_at(server, "kept")
    store.put("old", [b"x"])

    def refuse(request: Request) -> tuple[int, bytes] | None:
        denied = b"<Error><Key>kept/old</Key><Code>AccessDenied</Code><Message>no</Message></Error>"
        is_removal = request.method == "POST" and "delete" in request.target
        return (200, b"<DeleteResult>" + denied + b"</DeleteResult>") if is_removal else None

    server.answer = refuse
    with pytest.raises(StorageUnavailableError, match="AccessDenied"):
        store.remove_if(lambda path: path.endswith("old"))
