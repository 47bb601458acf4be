"""``--schema-registry`` and its file: no password is seen, wherever it was given."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from compose.cli.options.access import registry_option
from edges.registry.access import RegistryAccess
from schemas.errors import ConfigError


def config_file(folder: Path, text: str, mode: int = 0o600, name: str = "registry") -> Path:
    """Write a file of settings."""
    file = folder / f"{name}.properties"
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


@pytest.fixture
def ours(tmp_path: Path) -> RegistryAccess:
    """The bus's own registry, and one that changefeeds may name."""
    own = config_file(tmp_path, "basic.auth.user.info=bus:own\nssl.ca.location=ca.pem\n")
    text = "url=https://team.example/apis/ccompat/v7\nssl.ca.location=team.pem\nssl.certificate.location=c\n"
    team = config_file(tmp_path, f"{text}ssl.key.location=k\nbasic.auth.user.info=team:hunter2\n", name="team")
    return RegistryAccess.read("https://ours:8081", own, [team])


@pytest.mark.parametrize(
    ("url", "user_info", "ca"),
    [
        ("", "bus:own", "ca.pem"),
        ("https://ours:8081/", "bus:own", "ca.pem"),
        ("https://feed:pass@ours:8081", "feed:pass", "ca.pem"),
        ("https://team.example:443/apis/ccompat/v7/", "team:hunter2", "team.pem"),
        ("https://feed:pass@TEAM.example/apis/ccompat/v7", "feed:pass", "team.pem"),
        # Neither user nor certificate is shown elsewhere, be it the same machine.
        ("http://team.example/apis/ccompat/v7", "", ""),
        ("https://team.example:8443/apis/ccompat/v7", "", ""),
        ("https://team.example/other", "", ""),
        ("https://team.example.evil.org/apis/ccompat/v7", "", ""),
        ("https://ours", "", ""),
    ],
)
def test_changefeeds_registry_is_reached_by_the_file_of_exactly_its_url(
    tmp_path: Path, ours: RegistryAccess, url: str, user_info: str, ca: str
) -> None:
    access = ours.of_changefeed(url)
    assert access.user_info == user_info
    assert dict(access.settings).get("ssl.ca.location", "") == (str(tmp_path / ca) if ca else "")
    assert access.sinks == ()


def test_files_of_changefeeds_registries_go_to_children_by_path(tmp_path: Path, ours: RegistryAccess) -> None:
    assert ours.arguments()[-2:] == ["--sink-registry-config", str(tmp_path / "team.properties")]
    assert "hunter" not in f"{ours} {ours!r} {ours.arguments()} {ours.environment()}"


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["ssl.ca.location=ca.pem\n"], "must name its registry"),
        (["url=https://r/\n", "url=https://R:443\n"], "another file"),
        (["url=https://r\nssl.certificate.location=c\n"], "given together"),
        (["url=ftp://r\n"], "http or https"),
    ],
)
def test_file_of_a_changefeeds_registry_that_says_too_little_is_refused(
    tmp_path: Path, texts: list[str], message: str
) -> None:
    files = [config_file(tmp_path, text, name=str(number)) for number, text in enumerate(texts)]
    with pytest.raises(ConfigError, match=message):
        RegistryAccess.read("", None, files)


def test_commands_that_run_changefeeds_take_several_files(tmp_path: Path) -> None:
    given = []

    @click.command()
    @registry_option(required=False)
    def command(schema_registry: RegistryAccess) -> None:
        given.append(schema_registry)

    words = []
    for name in ("a", "b"):
        words += ["--sink-registry-config", str(config_file(tmp_path, f"url=https://{name}\n", name=name))]
    assert CliRunner().invoke(command, words, catch_exceptions=False).exit_code == 0
    assert CliRunner().invoke(command, given[0].arguments(), catch_exceptions=False).exit_code == 0
    assert [[sink.url for sink in access.sinks] for access in given] == [["https://a", "https://b"]] * 2
