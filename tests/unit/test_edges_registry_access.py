"""``--schema-registry`` and its file: no password is seen, wherever it was given."""

from pathlib import Path

import pytest

from edges.registry.access import RegistryAccess
from schemas.errors import ConfigError


def config_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    """Write a file of settings."""
    file = folder / "registry.properties"
    file.write_text(text)
    file.chmod(mode)
    return file


def test_url_alone_is_a_registry_that_asks_for_nothing() -> None:
    access = RegistryAccess.read("http://h:8081/api")
    assert (access.url, access.user_info, access.environment()) == ("http://h:8081/api", "", {})
    assert access.arguments() == ["--schema-registry", "http://h:8081/api"]
    assert access
    assert not RegistryAccess.read("")
    assert RegistryAccess.read("").arguments() == []


def test_user_of_a_url_goes_to_children_by_their_environment() -> None:
    access = RegistryAccess.read("https://me:hunter%402@h:8081/api")
    assert (access.url, access.user_info) == ("https://h:8081/api", "me:hunter@2")
    assert "hunter" not in f"{access} {access!r} {access.arguments()}"
    assert access.arguments() == []
    assert access.environment() == {"TIDEBUS_SCHEMA_REGISTRY": "https://me:hunter%402@h:8081/api"}


def test_file_gives_user_and_tls(tmp_path: Path) -> None:
    text = "basic.auth.user.info=me:hunter2\nssl.ca.location=ca.pem\n"
    access = RegistryAccess.read("https://h:8081", config_file(tmp_path, text))
    assert access.user_info == "me:hunter2"
    assert access.settings == (("ssl.ca.location", str(tmp_path / "ca.pem")),)
    assert "hunter" not in f"{access} {access!r} {access.arguments()} {access.environment()}"
    file = str(tmp_path / "registry.properties")
    assert access.arguments() == ["--schema-registry", "https://h:8081", "--schema-registry-config", file]


def test_client_has_user_and_settings(tmp_path: Path) -> None:
    config = config_file(tmp_path, "url=http://h:8081\nbasic.auth.user.info=me:hunter2\n")
    client = RegistryAccess.read("http://other", config).client(timeout=3.0, max_retries=0)
    assert client.config()["url"] == "http://h:8081"
    assert client.config()["basic.auth.user.info"] == "me:hunter2"
    assert (client.config()["timeout"], client.config()["max.retries"]) == (3.0, 0)


@pytest.mark.parametrize(
    ("url", "text", "key"),
    [
        ("ftp://me:hunter2@h", "", "schema-registry"),
        ("https://me:hunter2@", "", "schema-registry"),
        ("https://me:hunter2@h", "basic.auth.user.info=a:b\n", "basic.auth.user.info"),
        ("https://h", "basic.auth.user.info=\n", "basic.auth.user.info"),
        ("https://h", "ssl.certificate.location=hunter2\n", "ssl.key.location"),
        ("https://h", "basic.auth.user=hunter2\n", "basic.auth.user"),
    ],
)
def test_what_does_not_fit_is_refused_by_key_and_shows_no_password(
    tmp_path: Path, url: str, text: str, key: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        RegistryAccess.read(url, config_file(tmp_path, text))
    assert refused.value.fields["key"] == key
    assert "hunter2" not in str(refused.value)
