"""Which server a connection tells its password, where that is not sent as a hash of it."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from compose.stack.secure.certificates import Authority
from consumers.processors.apply import tls as tls_module
from consumers.processors.apply.connection import Connector
from consumers.processors.apply.errors import DestinationRefusedError
from schemas.config.changefeed import load_changefeed
from tests.support.database.fake_tidb import FAST_PATH, FakeTidb
from tests.support.database.tidb_catalog import TidbCatalog

SALT = b"a" * 8 + b"b" * 12
KEY = rsa.generate_private_key(65537, 2048)
PEM = KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
FULL = b"\x01\x04"
PASSWORD = b"hunter2\0"
SHA2, SHA256, NATIVE = b"caching_sha2_password", b"sha256_password", b"mysql_native_password"
ASKED = "asks for the password itself"


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server stands on another machine."""
    monkeypatch.setattr(tls_module, "_is_loopback", lambda connected: False)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def server_side(authority: Authority) -> Iterator[ssl.SSLContext]:
    pair = authority.issue("server")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.cert, pair.key)
    yield context


def connect(server: FakeTidb, parameters: str = "", password: str = "hunter2") -> None:
    address = server.uri.partition("@")[2]
    config = load_changefeed(f"mysql://root:{password}@{address}?{parameters}")
    assert config.uri.server is not None
    Connector(config.uri.server, config)().close()


def decrypted(data: bytes) -> bytes:
    plain = KEY.decrypt(data, padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None))
    return bytes(byte ^ SALT[at % len(SALT)] for at, byte in enumerate(plain))


def fake(tls: ssl.SSLContext | None, plugin: bytes, *more: bytes, greets: bool = False) -> FakeTidb:
    """Return a server that greets with a plugin, or turns to it."""
    answer = TidbCatalog().answer
    if greets:
        return FakeTidb(answer, tls=tls, greeting=plugin, more=more)
    return FakeTidb(answer, tls=tls, plugin=plugin, prompt=SALT + b"\0", more=more)


@pytest.mark.usefixtures("far")
@pytest.mark.parametrize("greets", [False, True])
@pytest.mark.parametrize(("plugin", "more"), [(SHA2, (FULL, b"\x01" + PEM)), (SHA256, (b"\x01" + PEM,))])
def test_server_without_tls_is_not_told_the_password_by_its_own_key(
    greets: bool, plugin: bytes, more: tuple[bytes, ...]
) -> None:
    with fake(None, plugin, *more, greets=greets) as server:
        with pytest.raises(DestinationRefusedError, match=ASKED) as refused:
            connect(server)
        assert plugin.decode() in str(refused.value)
        assert "ssl-ca" in str(refused.value) and "allow-public-key-retrieval=true" in str(refused.value)
        assert all(len(answer) != KEY.key_size // 8 and answer not in (b"\x01", b"\x02") for answer in server.answered)
        server.answered.clear()
        connect(server, "allow-public-key-retrieval=true")
        assert decrypted(server.answered[-1])[: len(PASSWORD)] == PASSWORD


@pytest.mark.usefixtures("far")
@pytest.mark.parametrize("greets", [False, True])
@pytest.mark.parametrize(("plugin", "more"), [(SHA2, (FULL,)), (SHA256, ())])
def test_server_over_tls_is_told_the_password_only_if_it_is_proven_or_by_leave(
    authority: Authority, server_side: ssl.SSLContext, greets: bool, plugin: bytes, more: tuple[bytes, ...]
) -> None:
    with fake(server_side, plugin, *more, greets=greets) as server:
        with pytest.raises(DestinationRefusedError, match=ASKED):
            connect(server)
        assert PASSWORD not in b"".join(server.answered)
        for leave in (f"ssl-ca={authority.path}", "allow-public-key-retrieval=true"):
            server.answered.clear()
            connect(server, leave)
            assert PASSWORD in server.answered[-1]


@pytest.mark.usefixtures("far")
@pytest.mark.parametrize("with_tls", [False, True])
@pytest.mark.parametrize("greets", [False, True])
def test_server_that_knows_the_hash_is_shown_it(server_side: ssl.SSLContext, with_tls: bool, greets: bool) -> None:
    with fake(server_side if with_tls else None, SHA2, FAST_PATH, greets=greets) as server:
        connect(server)
        assert len(server.answered) == 1
        assert PASSWORD[:-1] not in server.answered[0]


@pytest.mark.usefixtures("far")
def test_hash_of_the_default_plugin_goes_to_any_server() -> None:
    with fake(None, NATIVE) as server:
        connect(server)
        assert [len(answer) for answer in server.answered] == [20]


@pytest.mark.parametrize(("plugin", "more"), [(SHA2, (FULL, b"\x01" + PEM)), (SHA256, (b"\x01" + PEM,))])
def test_server_on_this_machine_is_told_the_password(plugin: bytes, more: tuple[bytes, ...]) -> None:
    with fake(None, plugin, *more) as server:
        connect(server)
        assert decrypted(server.answered[-1])[: len(PASSWORD)] == PASSWORD


@pytest.mark.usefixtures("far")
def test_leave_does_not_count_for_a_server_that_asks_in_the_clear(server_side: ssl.SSLContext) -> None:
    for tls in (None, server_side):
        with fake(tls, b"mysql_clear_password") as server:
            with pytest.raises(DestinationRefusedError, match=ASKED):
                connect(server, "allow-public-key-retrieval=true")
            assert server.answered == []


@pytest.mark.usefixtures("far")
def test_user_without_a_password_has_nothing_to_tell() -> None:
    with fake(None, SHA2) as server:
        connect(server, password="")
        assert server.answered == [b""]
