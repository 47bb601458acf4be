"""Clients of object storages that cannot be made: what is said then."""

import sys

import pytest

from consumers.processors.storage.store import ObjectStore, SinkStorageClientMissingError, StorageUnavailableError
from edges.storages.objects import tried
from schemas.config.sink.storage_uri import parse_storage_uri
from sorters.cut.claim_store import ClaimBucket, ClaimClientMissingError


@pytest.mark.parametrize(
    ("uri", "module", "extra"),
    [("azure://c1/p", "azure", "azure"), ("gs://c1/p", "google", "gcs"), ("s3://c1/p", "s3", "s3")],
)
def test_storage_whose_client_is_not_installed_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, uri: str, module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, f"edges.storages.{module}", None)
    storage = parse_storage_uri(uri)
    with pytest.raises(SinkStorageClientMissingError, match=rf"install=tidebus\[{extra}\]"):
        ObjectStore(storage).get("file")
    with pytest.raises(ClaimClientMissingError, match=rf"install=tidebus\[{extra}\]"):
        ClaimBucket(storage).store("file", b"x")


@pytest.mark.parametrize(
    ("uri", "variables", "words"),
    [
        ("azure://c2", {}, "no account is named"),
        ("azure://c2?account-name=n&access-tier=hot", {"AZURE_ENCRYPTION_KEY": "k"}, "access-tier excludes"),
        ("azure://c2?account-name=n&encryption-scope=s", {"AZURE_ENCRYPTION_KEY": "k"}, "encryption-scope excludes"),
        ("gs://c2?credentials-file=/no/such/file", {}, "/no/such/file"),
        ("gs://c2?credentials-file=/dev/null", {}, "holds no credentials"),
    ],
)
def test_storage_that_cannot_be_opened_says_why(
    monkeypatch: pytest.MonkeyPatch, uri: str, variables: dict[str, str], words: str
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StorageUnavailableError, match=words):
        ObjectStore(parse_storage_uri(uri)).get("file")


def test_what_fails_for_a_moment_is_tried_three_times_and_the_lease_asked_for_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    asked: list[int] = []

    def send() -> None:
        raise TimeoutError("slow")

    with pytest.raises(TimeoutError):
        tried(send, lambda error: isinstance(error, TimeoutError), lambda: asked.append(1))
    assert len(asked) == 3
    with pytest.raises(TimeoutError):
        tried(send, lambda error: False, lambda: asked.append(1))
    assert len(asked) == 4
