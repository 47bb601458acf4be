"""Azure's and Google's storages: servers that speak as they do on loopback, and what their clients ask of them."""

import base64
import hashlib
import json
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import pytest
from azure.storage.blob import ContainerClient, ContainerSasPermissions, generate_container_sas

from compose.stack.local import Addresses
from consumers.processors.storage.store import LeasedStore, ObjectStore, StorageUnavailableError, file_store
from edges.storages.objects import open_objects
from edges.zookeeper.session import LeaseLostError
from schemas.config.changefeed import load_changefeed
from schemas.config.sink.storage_uri import parse_storage_uri
from schemas.sink.topic import sink_topic
from sorters.cut.claim_store import ClaimBucket
from tests.support.storages.azurite import ACCOUNT, KEY, azurite
from tests.support.storages.google_storage import TOKENS, google_storage, hosts_of_google, write_service_account
from tests.support.storages.recording_proxy import Recording, Request, recorded
from tests.support.topics.storage_lives import SETTINGS, Files, apply_with_crashes, check_files, info_of, write_topic
from tests.support.topics.storage_topic import topic_of

__all__ = ["azurite", "google_storage"]

ENCRYPTION_KEY = "k" * 32
LONG = b"n" * (20 << 20)


@pytest.fixture(params=["azure", "gs"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(kind: str, request: pytest.FixtureRequest) -> Iterator[Recording]:
    """The server, behind one that records what it is asked."""
    with recorded(request.getfixturevalue("azurite" if kind == "azure" else "google_storage")) as recording:
        yield recording


@pytest.fixture
def uri(kind: str, server: Recording) -> Callable[[str], str]:
    """Make the URI of a folder of the bucket ``rows``."""

    def made(folder: str, more: str = "") -> str:
        if kind == "gs":
            return f"gs://rows/{folder}?protocol=csv&endpoint={server.address}/storage/v1/{more}"
        make_container(server.address)
        given = f"endpoint={server.address}/{ACCOUNT}&account-name={ACCOUNT}&account-key={quote(KEY, safe='')}"
        return f"azure://rows/{folder}?protocol=csv&{given}{more}"

    return made


def make_container(address: str) -> None:
    client = ContainerClient(f"{address}/{ACCOUNT}", "rows", credential=KEY)
    if not client.exists():
        client.create_container()


def files_below(uri: str, folder: str) -> Files:
    objects = open_objects(parse_storage_uri(uri))
    return {key.removeprefix(f"{folder}/"): objects.get(key) or b"" for key in objects.find(folder)}


@pytest.mark.parametrize("extension", ["csv", "json"])
def test_storage_sink_killed_and_begun_again_shows_every_line_once(
    stack: Addresses, fresh_name: Callable[[str], str], uri: Callable[[str], str], extension: str
) -> None:
    topic, meant, last_ts = topic_of(random.Random(5))
    name = fresh_name("objects")
    given = uri(name).replace("protocol=csv", "protocol=canal-json" if extension == "json" else "protocol=csv")
    info = info_of(name, f"{given}&flush-interval=2s")
    write_topic(stack.kafka, sink_topic(info), topic)
    apply_with_crashes(stack.kafka, info, last_ts, random.Random(5))
    check_files(files_below(given, name), meant, last_ts, extension)


@pytest.mark.parametrize("content", [b"new\r\n--==0==--\n\0\xff", LONG], ids=["at once", "in parts"])
def test_object_of_who_loses_its_lease_while_it_is_written_never_shows(
    uri: Callable[[str], str], content: bytes
) -> None:
    storage = load_changefeed(uri(f"late{len(content)}"), SETTINGS).uri.storage
    assert storage is not None
    lost = [False]
    store = file_store(storage)

    def check() -> None:
        if lost[0]:
            raise LeaseLostError("gone")

    def lose() -> None:
        lost[0] = True

    leased = LeasedStore(store, check)
    leased.put("d/file", [b"old"])
    with pytest.raises(LeaseLostError):
        leased.put("d/file", [content[:10], content[10:]], lose)
    assert store.get("d/file") == b"old"
    lost[0] = False
    leased.put("d/file", [content[:10], content[10:]])
    assert store.get("d/file") == content


def test_old_objects_are_removed_and_others_stay(uri: Callable[[str], str]) -> None:
    store = ObjectStore(parse_storage_uri(uri("expiry")))
    for path in ("a/old", "a b/old", "new"):
        store.put(path, [b"x"])
    ObjectStore(parse_storage_uri(uri("expiry2"))).put("old", [b"x"])
    assert store.remove_if(lambda path: path.endswith("old")) == 2
    assert set(files_below(uri("expiry"), "expiry")) == {"new"}
    assert set(files_below(uri("expiry2"), "expiry2")) == {"old"}
    assert store.get("a/old") is None


def test_large_messages_go_there_too(uri: Callable[[str], str]) -> None:
    ClaimBucket(parse_storage_uri(uri("claims"))).store("message.json", b"whole")
    assert files_below(uri("claims"), "claims") == {"message.json": b"whole"}


def test_answer_that_passes_is_asked_for_again_once_the_lease_was(server: Recording, uri: Callable[[str], str]) -> None:
    storage, own, refused = parse_storage_uri(uri("again")), server.answer, [503, 429]

    def busy(request: Request) -> tuple[int, bytes] | None:
        is_write = request.method in ("PUT", "POST") and "/rows" in request.target
        return (refused.pop(), b"busy") if refused and is_write else own(request)

    server.answer = busy
    asked: list[int] = []
    ObjectStore(storage).put("file", [b"x"], lambda: asked.append(1))
    assert (refused, len(asked), ObjectStore(storage).get("file")) == ([], 3, b"x")


def test_bucket_that_is_not_there_is_an_error_that_shows_no_secret(uri: Callable[[str], str], kind: str) -> None:
    store = ObjectStore(parse_storage_uri(uri("x").replace("//rows/", "//no-such-bucket/")))
    with pytest.raises(StorageUnavailableError, match=r"storage=[a-z]+://no-such-bucket/x") as caught:
        store.put("file", [b"x"])
    assert KEY not in str(caught.value) and "given-token" not in str(caught.value)
    if kind == "azure":  # the emulator of the other one does not tell which of both is not there
        with pytest.raises(StorageUnavailableError):
            store.get("file")


@pytest.mark.parametrize("content", [b"x", LONG], ids=["at once", "in parts"])
def test_google_is_told_class_and_acl_by_who_the_file_says(
    google_storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    write_service_account(tmp_path / "account.json", TOKENS)
    parameters = "storage-class=NEARLINE&predefined-acl=projectPrivate"
    store = ObjectStore(parse_storage_uri(f"gs://rows/told?{parameters}&credentials-file={tmp_path}/account.json"))
    with hosts_of_google(google_storage, tmp_path, monkeypatch) as server:
        store.put("file", [content])
    (begun,) = server.of("POST", "/upload/storage/v1/b/rows/o?")
    assert "predefinedAcl=projectPrivate" in begun.target
    assert {request.headers["authorization"] for request in [*server.of("PUT"), begun]} == {"Bearer given-token"}
    said = begun.body.partition(b"\r\n\r\n")[2].partition(b"\r\n--")[0] if len(content) == 1 else begun.body
    assert json.loads(said) == {"name": "told/file", "storageClass": "NEARLINE"}
    (asked,) = server.of("POST", "/token")
    assert b"assertion=" in asked.body
    assert len(server.of("PUT")) == (0 if len(content) == 1 else 3)


@pytest.mark.parametrize("kind", ["azure"])
@pytest.mark.parametrize("content", [b"x", LONG], ids=["at once", "in parts"])
def test_azure_is_told_the_tier_with_what_lets_the_object_show(
    server: Recording, uri: Callable[..., str], content: bytes
) -> None:
    given = uri("told", "&access-tier=cool")
    ObjectStore(parse_storage_uri(given)).put("file", [content])
    *parts, shown = server.of("PUT", "/rows/told/file")
    assert shown.headers["x-ms-access-tier"] == "Cool"
    assert [("comp=block" in part.target, "x-ms-access-tier" in part.headers) for part in parts] == (
        [] if len(content) == 1 else [(True, False)] * 3
    )
    client = ContainerClient(f"{server.address}/{ACCOUNT}", "rows", credential=KEY)
    assert client.get_blob_client("told/file").get_blob_properties().blob_tier == "Cool"


@pytest.mark.parametrize("content", [b"x", LONG], ids=["at once", "in parts"])
def test_azure_is_told_the_encryption_with_each_request(
    azurite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    with recorded(azurite, tmp_path) as server:
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "ca.pem"))
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", ACCOUNT)
        make_container(server.address)
        given = f"azblob://rows/sealed?endpoint={server.address}/{ACCOUNT}&account-key={quote(KEY, safe='')}"
        store = ObjectStore(parse_storage_uri(f"{given}&encryption-key={ENCRYPTION_KEY}"))
        store.put("file", [content])
        assert store.get("file") == content
        asked = server.of("PUT", "/rows/sealed/") + server.of("GET", "/rows/sealed/")
        digest = base64.b64encode(hashlib.sha256(ENCRYPTION_KEY.encode()).digest()).decode()
        said = (base64.b64encode(ENCRYPTION_KEY.encode()).decode(), digest, "AES256")
        names = ("x-ms-encryption-key", "x-ms-encryption-key-sha256", "x-ms-encryption-algorithm")
        assert {tuple(request.headers.get(name) for name in names) for request in asked} == {said}
        server.requests.clear()
        ObjectStore(parse_storage_uri(f"{given}&encryption-scope=ours")).put("file", [content])
        assert {request.headers.get("x-ms-encryption-scope") for request in server.of("PUT")} == {"ours"}


@pytest.mark.parametrize("kind", ["azure"])
def test_azure_takes_a_shared_access_signature_before_all_else(
    server: Recording, uri: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_container(server.address)
    monkeypatch.setenv("AZURE_STORAGE_KEY", "bm90IHRoZSBrZXk=")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountName=other")  # adlfs' and none of TiDB's
    token = generate_container_sas(
        *(ACCOUNT, "rows", KEY),
        permission=ContainerSasPermissions(read=True, write=True, list=True, delete=True),
        expiry=datetime.now(UTC) + timedelta(hours=1),
    )
    given = f"azure://rows/sas?endpoint={server.address}/{ACCOUNT}&account-name={ACCOUNT}"
    store = ObjectStore(parse_storage_uri(f"{given}&sas-token=%3F{quote(token, safe='')}"))
    store.put("file", [b"x"])
    assert store.get("file") == b"x"
    *_, asked = server.of("PUT", "/rows/sas/file")
    assert "sig=" in asked.target and "authorization" not in asked.headers
