"""What connections to a database read of certificates, and how often."""

import ssl
from pathlib import Path

import pytest

from compose.stack.secure.certificates import Authority
from consumers.processors.apply import tls
from consumers.processors.apply.connection import Connector
from consumers.processors.apply.errors import DestinationRefusedError
from schemas.config.changefeed import load_changefeed
from schemas.config.sink.mysql import MysqlConfig
from tests.support.database.fake_tidb import FakeTidb
from tests.support.database.tidb_catalog import TidbCatalog


def test_a_connection_that_proves_no_name_reads_no_authorities(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> ssl.SSLContext:
        raise AssertionError("authorities were read")

    monkeypatch.setattr(ssl, "create_default_context", refuse)
    with FakeTidb(TidbCatalog().answer) as server:
        config = load_changefeed(server.uri)
        assert config.uri.server is not None
        connection = Connector(config.uri.server, config)()
        # Where the server has TLS it is used all the same.
        assert connection.ctx.verify_mode is ssl.CERT_NONE
        connection.close()


def test_authorities_are_read_anew_when_their_file_has_changed(tmp_path: Path) -> None:
    file, machine = tmp_path / "ca.pem", ssl.get_default_verify_paths().cafile
    if machine is None:
        pytest.skip("this machine has no file of authorities")
    certificates = Path(machine).read_text().split("-----END CERTIFICATE-----\n")
    file.write_text(certificates[0] + "-----END CERTIFICATE-----\n")
    settings = MysqlConfig(ssl_ca=str(file))
    first = tls.tls_context(settings)
    assert tls.tls_context(settings) is first
    file.write_text(certificates[1] + "-----END CERTIFICATE-----\n")
    second = tls.tls_context(settings)
    assert second.get_ca_certs() != first.get_ca_certs()
    assert second.verify_mode is ssl.CERT_REQUIRED and second.check_hostname
    with pytest.raises(OSError):
        tls.tls_context(MysqlConfig(ssl_ca=str(tmp_path / "none")))


@pytest.mark.parametrize(("plugin", "prompt"), [(b"mysql_clear_password", b""), (b"dialog", b"\x05Password: ")])
@pytest.mark.parametrize("scheme", ["mysql", "mysql+ssl"])
def test_password_itself_is_said_to_a_server_only_whose_name_tls_proves(
    tmp_path: Path, plugin: bytes, prompt: bytes, scheme: str
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_side.load_cert_chain(pair.cert, pair.key)
    with FakeTidb(TidbCatalog().answer, tls=server_side, plugin=plugin, prompt=prompt) as server:
        address = server.uri.partition("@")[2]
        proven = load_changefeed(f"mysql://root:hunter2@{address}?ssl-ca={authority.path}")
        assert proven.uri.server is not None
        Connector(proven.uri.server, proven)().close()
        assert server.answered == [b"hunter2\0"]
        unproven = load_changefeed(f"{scheme}://root:hunter2@{address}")
        assert unproven.uri.server is not None
        with pytest.raises(DestinationRefusedError) as refused:
            Connector(unproven.uri.server, unproven)()
        assert ("asks for the password itself" in str(refused.value)) == (scheme == "mysql"), "else TLS refuses before"
        assert server.answered == [b"hunter2\0"]


def test_password_itself_is_never_said_without_tls() -> None:
    with FakeTidb(TidbCatalog().answer, plugin=b"mysql_clear_password") as server:
        config = load_changefeed(server.uri.replace("root@", "root:hunter2@"))
        assert config.uri.server is not None
        with pytest.raises(DestinationRefusedError, match="asks for the password itself"):
            Connector(config.uri.server, config)()
        assert server.answered == []
