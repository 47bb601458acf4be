"""``--zookeeper-config``: what it takes, and whom the nodes are for."""

from pathlib import Path
from typing import Any

import pytest
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from compose.stack.secure.certificates import Authority
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.session import Session
from schemas.errors import ConfigError

USER = "digest.username=bus\ndigest.password=hunter2\n"
TLS = "ssl.ca.location=ca.pem\nssl.certificate.location=cert.pem\nssl.key.location=key.pem\n"


def config_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    """Write a file of settings."""
    file = folder / "zookeeper.properties"
    file.write_text(text)
    file.chmod(mode)
    return file


def test_without_a_file_everybody_may_do_everything() -> None:
    access = ZooKeeperAccess.read("h1:2181,h2:2181")
    assert access.acl == OPEN_ACL_UNSAFE
    client: Any = access.client(6.0)
    assert (client.auth_data, client.use_ssl, client.default_acl) == (set(), False, OPEN_ACL_UNSAFE)
    assert access.arguments() == ["--zookeeper", "h1:2181,h2:2181"]


def test_user_makes_nodes_for_nobody_else(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("client")
    text = f"ssl.ca.location=ca.pem\nssl.certificate.location={pair.cert}\nssl.key.location={pair.key}\n"
    access = ZooKeeperAccess.read("h:2181", config_file(tmp_path, USER + text))
    client: Any = access.client(6.0)
    assert access.acl == client.default_acl == CREATOR_ALL_ACL
    assert client.auth_data == {("digest", "bus:hunter2")}
    assert (client.use_ssl, client.check_hostname, client.verify_certs) == (True, True, True)
    assert (client.ca, client.certfile, client.keyfile) == (str(tmp_path / "ca.pem"), pair.cert, pair.key)


def test_files_of_tls_that_cannot_be_used_are_named_before_a_server_is_asked(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued, other = authority.issue("one"), authority.issue("other")
    for given, key in (
        ({"ca_path": "/none.pem"}, "ssl.ca.location"),
        ({"ca_path": issued.key}, "ssl.ca.location"),
        ({"ca_path": authority.path, "cert_path": issued.cert, "key_path": other.key}, "ssl.certificate.location"),
    ):
        with pytest.raises(ConfigError) as refused:
            Session(ZooKeeperAccess("127.0.0.1:1", tls=True, **given))  # type: ignore[arg-type]
        assert refused.value.fields["key"] == key


def test_certificate_alone_is_an_identity_and_the_ca_alone_is_none(tmp_path: Path) -> None:
    assert ZooKeeperAccess.read("h:1", config_file(tmp_path, TLS)).acl == CREATOR_ALL_ACL
    ca_only = ZooKeeperAccess.read("h:1", config_file(tmp_path, "ssl.ca.location=ca.pem\n"))
    assert (ca_only.acl, ca_only.tls) == (OPEN_ACL_UNSAFE, True)
    assert ZooKeeperAccess.read("h:1", config_file(tmp_path, USER + "acl=open\n")).acl == OPEN_ACL_UNSAFE


def test_nodes_made_in_a_transaction_are_for_nobody_else_too(tmp_path: Path) -> None:
    client: Any = ZooKeeperAccess.read("h:2181", config_file(tmp_path, USER)).client(6.0)
    transaction = client.transaction()
    transaction.create("/a", b"x")
    assert [operation.acl for operation in transaction.operations] == [CREATOR_ALL_ACL]
    everybody: Any = ZooKeeperAccess("h:2181").client(6.0).transaction()
    everybody.create("/a", b"x")
    assert [operation.acl for operation in everybody.operations] == [OPEN_ACL_UNSAFE]


def test_neither_repr_nor_arguments_show_a_secret(tmp_path: Path) -> None:
    access = ZooKeeperAccess.read("h:2181", config_file(tmp_path, "servers=z:1\n" + USER))
    assert "hunter2" not in f"{access} {access!r} {access.arguments()}"
    assert access.arguments() == ["--zookeeper", "z:1", "--zookeeper-config", str(tmp_path / "zookeeper.properties")]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("digest.username=bus\n", "digest.password"),
        ("digest.password=x\n", "digest.username"),
        ("digest.username=a:b\ndigest.password=x\n", "digest.username"),
        ("ssl.certificate.location=c\nssl.key.location=k\n", "ssl.ca.location"),
        ("ssl.ca.location=ca\nssl.key.location=k\n", "ssl.certificate.location"),
        ("acl=creator\n", "acl"),
        ("acl=all\n", "acl"),
        ("sasl.mechanism=GSSAPI\n", "sasl.mechanism"),
        ("session.timeout.ms=1\n", "session.timeout.ms"),
        ("digest.user=bus\n", "digest.user"),
    ],
)
def test_file_that_does_not_fit_is_refused_by_key(tmp_path: Path, text: str, key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ZooKeeperAccess.read("h:2181", config_file(tmp_path, text))
    assert refused.value.fields["key"] == key


def test_file_with_a_password_that_others_can_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="chmod 600"):
        ZooKeeperAccess.read("h:2181", config_file(tmp_path, USER, 0o644))
    with pytest.raises(ConfigError, match="no ZooKeeper is named"):
        ZooKeeperAccess.read("", config_file(tmp_path, USER))
