"""Who names a storage's endpoint gets no credentials of the machine."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from consumers.processors.storage.store import ObjectStore, StorageUnavailableError
from edges.storages.azure import azure_objects
from edges.storages.google import google_objects
from schemas.config.changefeed import load_changefeed
from schemas.config.sink.storage_hosts import is_of_cloud
from schemas.config.sink.storage_uri import parse_storage_uri
from schemas.errors import ConfigError
from tests.support.storages.google_storage import give_token, write_service_account
from tests.support.storages.recording_proxy import Recording, Request, recorded

KEY = "a2V5IG9mIHRoZSBtYWNoaW5l"
PRINCIPAL = {"AZURE_TENANT_ID": "t", "AZURE_CLIENT_ID": "c", "AZURE_CLIENT_SECRET": "s"}
GOOGLES = ("https://storage.googleapis.com", "https://storage-psc.p.googleapis.com:443/x")
AZURES = (
    "https://n.blob.core.windows.net",
    "https://n.z07.blob.storage.azure.net/",
    "https://n.blob.core.chinacloudapi.cn",
    "https://N.privatelink.blob.core.usgovcloudapi.net",
)
FOREIGN = (
    *("attacker.example", "http://{0}", "https://{0}.attacker.example", "https://attacker-{domain}", "https://{0}."),
    *("https://attacker.example/.{0}", "https://attacker.example\\.{0}", "https://attacker.example%2f.{0}"),
    *("https://attacker.example%5c.{0}", "https://attacker.example\uff0f.{0}", "https://attacker.example:443.{0}"),
    *("https://localhost.attacker.example", "https://127.0.0.1\\.attacker.example", "https://2130706433"),
    *("https://127.0.0.1.attacker.example", "https://169.254.169.254", "https://0.0.0.0"),
)


@pytest.fixture
def attacker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    """A server on a machine that has credentials of each kind; it answers that nothing is there."""

    def nothing(request: Request) -> tuple[int, bytes]:
        return give_token(request) or (404, b"")

    with recorded("127.0.0.1:1") as recording:
        recording.answer = nothing
        write_service_account(tmp_path / "machine.json", recording.address)
        (tmp_path / "netrc").write_text("default login of-the-machine password of-the-machine\n")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "machine.json"))
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        monkeypatch.setenv("AZURE_STORAGE_KEY", KEY)
        yield recording


@pytest.mark.parametrize("form", FOREIGN)
@pytest.mark.parametrize(
    ("uri", "host"),
    [
        ("gcs://b/p?protocol=csv&", "storage.googleapis.com"),
        ("gs://b/p?protocol=csv&credentials-file=/etc/machine.json&", "storage.googleapis.com"),
        ("azure://c/p?protocol=csv&account-name=n&", "n.blob.core.windows.net"),
        ("azblob://c/p?protocol=csv&account-name=n&account-key=&sas-token=&", "n.blob.core.windows.net"),
    ],
)
def test_endpoint_that_is_no_clouds_is_refused_without_credentials_of_its_own(uri: str, host: str, form: str) -> None:
    endpoint = form.format(host, domain=host.partition(".")[2]).replace("%", "%25")
    with pytest.raises(ConfigError, match=r"\*\.(googleapis\.com|blob\.core\.windows\.net)|no https") as caught:
        load_changefeed(f"{uri}endpoint={endpoint}")
    assert caught.value.code == "bus.config"
    assert "attacker" not in str(caught.value)


def test_large_messages_go_to_no_such_endpoint_either() -> None:
    text = """
    [sink.kafka-config.large-message-handle]
    large-message-handle-option = "claim-check"
    claim-check-storage-uri = "gs://b?endpoint=https://attacker.example"
    """
    with pytest.raises(ConfigError, match=r"claim-check-storage-uri has an endpoint that is not Google's own"):
        load_changefeed("kafka://127.0.0.1:9092/t?protocol=canal-json&enable-tidb-extension=true", text)


@pytest.mark.parametrize("own", ["account-key=bXkga2V5", "sas-token=sv=1%26sig=mine"])
def test_endpoint_of_ones_own_takes_what_the_uri_brings(own: str) -> None:
    parsed = parse_storage_uri(f"azure://c?account-name=n&endpoint=https://azurite.example&{own}")
    assert parsed.options["endpoint"] == "https://azurite.example"


def test_google_on_loopback_is_asked_by_nobody(attacker: Recording) -> None:
    store = ObjectStore(parse_storage_uri(f"gs://bucket?endpoint={attacker.address}"))
    assert store.get("file") is None
    (asked,) = attacker.requests
    assert asked.target.startswith("/storage/v1/b/bucket/") and "authorization" not in asked.headers


def test_token_of_a_file_goes_to_no_loopback(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="credentials-file beside an endpoint on loopback"):
        parse_storage_uri(f"gs://b?endpoint=http://127.0.0.1:9&credentials-file={tmp_path}/machine.json")


@pytest.mark.parametrize("variables", [{}, PRINCIPAL], ids=["key", "principal"])
def test_azure_on_loopback_is_asked_by_nobody(
    attacker: Recording, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with suppress(StorageUnavailableError):
        ObjectStore(parse_storage_uri(f"azure://c?account-name=n&endpoint={attacker.address}/n")).get("file")
    (asked,) = attacker.requests
    assert asked.target.startswith("/n/c/file") and "authorization" not in asked.headers and "sig=" not in asked.target


def test_encryption_key_of_the_machine_goes_to_azure_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_ENCRYPTION_KEY", "k" * 32)
    storage = parse_storage_uri("azure://c?account-name=n&account-key=bXk=&endpoint=https://attacker.example")
    with pytest.raises(StorageUnavailableError, match="AZURE_ENCRYPTION_KEY goes to Azure's own hosts alone"):
        ObjectStore(storage).get("file")


@pytest.mark.parametrize(
    "name", ["attacker.example/", "attacker.example%23", "attacker.example%5c", "u%40attacker", ""]
)
def test_account_whose_name_is_a_host_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("AZURE_STORAGE_KEY", KEY)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "attacker.example/")
    with pytest.raises(StorageUnavailableError, match="no account's"):
        ObjectStore(parse_storage_uri(f"azure://c?account-name={name}")).get("file")


@pytest.mark.parametrize("url", GOOGLES)
def test_google_itself_is_asked_by_who_the_machine_is_for_its_objects_alone(attacker: Recording, url: str) -> None:
    assert is_of_cloud("gs", url)
    for options, scope in (({}, "read_write"), ({"predefined_acl": "private"}, "full_control")):
        opened = google_objects("b", {"endpoint": url, **options})
        assert opened.session.credentials.scopes == [f"https://www.googleapis.com/auth/devstorage.{scope}"]


@pytest.mark.parametrize("url", AZURES)
def test_azure_itself_is_asked_by_who_the_machine_is(attacker: Recording, url: str) -> None:
    parsed = parse_storage_uri(f"azure://c?account-name=n&endpoint={url}")
    for options in (parsed.options, {"account_name": "n"}):
        assert azure_objects("c", options).container.credential.account_key == KEY
