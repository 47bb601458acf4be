"""A credentials-file of a changefeed lets the machine read no other file and send nothing to a host that it names."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consumers.processors.storage.store import ObjectStore, StorageUnavailableError
from edges.storages.google import google_objects
from edges.storages.google_credentials import READ_WRITE, credentials
from schemas.config.sink.storage_uri import parse_storage_uri
from sorters.cut.claim_store import ClaimBucket, ClaimStoreError
from tests.support.storages.google_storage import TOKENS, write_service_account
from tests.support.storages.recording_proxy import Recording, recorded

USER = {"type": "authorized_user", "client_id": "i", "client_secret": "s", "refresh_token": "r"}
KINDS = "allowed are service_account and authorized_user"


@pytest.fixture
def attacker() -> Iterator[Recording]:
    """A server that takes all, and gives tokens for it."""
    with recorded("127.0.0.1:1") as recording:
        token = {"access_token": "t", "token_type": "Bearer", "expires_in": 3600}
        token["issued_token_type"] = "urn:ietf:params:oauth:token-type:access_token"
        recording.answer = lambda _: (200, json.dumps(token).encode())
        yield recording


def external(folder: Path, address: str) -> dict[str, Any]:
    """Return credentials that let Google's library read a file and send what it says."""
    (folder / "secret").write_text("secret-of-the-machine")
    return {
        "type": "external_account",
        "audience": "a",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"{address}/t",
        "credential_source": {"file": str(folder / "secret")},
    }


def impersonated(folder: Path, address: str) -> dict[str, Any]:
    url = f"{address}/v1/projects/-/serviceAccounts/a@p.example:generateAccessToken"
    source = external(folder, address)
    return {
        "type": "impersonated_service_account",
        "service_account_impersonation_url": url,
        "source_credentials": source,
    }


def account(folder: Path, **more: object) -> dict[str, Any]:
    write_service_account(folder / "account.json", TOKENS)
    return {**json.loads((folder / "account.json").read_bytes()), **more}


@pytest.mark.parametrize("made", [external, impersonated])
def test_file_of_another_kind_reads_no_file_and_asks_nobody(attacker: Recording, tmp_path: Path, made: Any) -> None:
    file = tmp_path / "given.json"
    file.write_text(json.dumps(made(tmp_path, attacker.address)))
    storage = parse_storage_uri(f"gcs://bucket/p?credentials-file={file}")
    with pytest.raises(StorageUnavailableError, match=KINDS):
        ObjectStore(storage).get("x")
    with pytest.raises(ClaimStoreError, match=KINDS):
        ClaimBucket(storage).store("x", b"y")
    assert attacker.requests == []


@pytest.mark.parametrize(
    "kind", ["external_account_authorized_user", "gdch_service_account", "word-of-a-file", None, 7]
)
def test_kind_that_is_not_allowed_is_not_shown(tmp_path: Path, kind: object) -> None:
    file = tmp_path / "given.json"
    file.write_text(json.dumps({"type": kind}))
    with pytest.raises(ValueError, match=KINDS) as caught:
        credentials(str(file), READ_WRITE)
    assert "word-of-a-file" not in str(caught.value)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"token_uri": "https://attacker.example/token"}, "token_uri that is not Google's own"),
        ({"token_uri": "http://oauth2.googleapis.com/token"}, "token_uri that is not Google's own"),
        ({"token_uri": "https://attacker.example\\.googleapis.com/token"}, "token_uri that is not Google's own"),
        ({"token_uri": "https://attacker.example\t.googleapis.com/token"}, "token_uri that is not Google's own"),
        ({"token_uri": "https://accounts.google.com/o/oauth2/token.attacker"}, "token_uri that is not Google's own"),
        ({"token_uri": ["https://oauth2.googleapis.com/token"]}, "holds no credentials"),
        ({"universe_domain": "attacker.example"}, "universe_domain other than googleapis.com"),
    ],
)
def test_file_that_names_a_server_of_its_own_is_refused(tmp_path: Path, more: dict[str, object], words: str) -> None:
    for said in (account(tmp_path, **more), {**USER, **more}):
        (tmp_path / "given.json").write_text(json.dumps(said))
        with pytest.raises(ValueError, match=words) as caught:
            credentials(str(tmp_path / "given.json"), READ_WRITE)
        assert "attacker" not in str(caught.value)


@pytest.mark.parametrize("tokens", [f"{TOKENS}/token", "https://accounts.google.com/o/oauth2/token"])
def test_file_of_an_account_or_a_user_is_taken_for_objects_alone(tmp_path: Path, tokens: str) -> None:
    for said in (account(tmp_path, token_uri=tokens, universe_domain="googleapis.com"), USER):
        (tmp_path / "given.json").write_text(json.dumps(said))
        assert credentials(str(tmp_path / "given.json"), READ_WRITE).scopes == [READ_WRITE]


def test_endless_file_is_not_read_to_its_end() -> None:
    with pytest.raises(ValueError, match="/dev/zero holds no credentials"):
        credentials("/dev/zero", READ_WRITE)


def test_operators_own_variable_may_name_any_kind(
    attacker: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "operator.json").write_text(json.dumps(external(tmp_path, attacker.address)))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "operator.json"))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "p")
    opened = google_objects("bucket", {})
    assert type(opened.session.credentials).__module__ == "google.auth.identity_pool"
