"""Who guesses passwords of a capture's API, and who might read them on the wire."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compose.capture.api.server import api_server
from compose.capture.settings.options import CaptureOptions
from compose.cli import run_cli
from compose.stack.secure.certificates import Authority
from consumers.control.api.access import logins
from consumers.control.api.access.credentials import CredentialsFile, PasswordHash, read_credentials
from consumers.control.api.access.logins import FREE_ATTEMPTS, REMEMBERED_MAX, Logins
from consumers.control.api.access.tls import ApiTls
from consumers.control.api.client import ApiClient, ServerTlsError
from consumers.control.api.serving import guard
from consumers.control.api.serving.server import ApiServer
from edges.kafka.access import KafkaAccess
from edges.registry.access import RegistryAccess
from edges.zookeeper.access import ZooKeeperAccess
from schemas.errors import ConfigError
from schemas.ids import UpstreamId
from tests.support.control.api import Api
from tests.support.control.api_users import BASIC, USERS, is_refused
from tests.support.control.memory_bus import ME, OTHER, Memory
from tests.support.upstream.feed_sink import wait_until

# -- who guesses


def test_guessing_has_to_wait_and_who_knows_is_let_in_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    api, now = Api(Memory(), USERS), [100.0]
    monkeypatch.setattr(guard, "monotonic", lambda: now[0])
    wrong = {"Authorization": "Basic YW5hOng="}
    for _ in range(FREE_ATTEMPTS):
        assert is_refused(api.ask("GET", "/api/v2/captures", headers=wrong), 401, "api.unauthorized")
    answer = api.http.get("/api/v2/captures", headers=BASIC)
    assert answer.status_code == 429 and int(answer.headers["Retry-After"]) >= 1
    now[0] += 2.0
    assert api.ask("GET", "/api/v2/captures", headers=BASIC)[0] == 200
    assert api.ask("GET", "/api/v2/captures", headers=wrong)[0] == 401


def test_guesses_of_many_users_make_a_host_wait_and_take_no_more_memory() -> None:
    book = Logins()
    for number in range(REMEMBERED_MAX + 100):
        book.failed("far", str(number), 1.0)
    assert book.wait_s("far", "new", 1.0) > 0
    assert book.wait_s("near", "0", 1.0) == 0
    assert len(book._failures) <= logins.REMEMBERED_MAX


def test_nobody_is_locked_out_by_who_gives_no_user_on_his_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """`cdc cli` without credentials sends the Authorization of an empty user and an empty password."""
    api, now = Api(Memory(), USERS), [100.0]
    monkeypatch.setattr(guard, "monotonic", lambda: now[0])
    for _ in range(10 * FREE_ATTEMPTS):
        nobody = {"Authorization": "Basic Og=="}
        assert is_refused(api.ask("GET", "/api/v2/captures", headers=nobody), 401, "api.unauthorized")
    assert api.ask("GET", "/api/v2/captures", headers=BASIC)[0] == 200


def test_job_with_an_old_password_locks_out_its_own_user_alone() -> None:
    book = Logins()
    for minute in range(600):
        book.failed("here", "job", 60.0 * minute)
    now_s = 60.0 * 599
    assert book.wait_s("here", "job", now_s) == logins.WAIT_MAX_S
    assert (book.wait_s("here", "ana", now_s), book.wait_s("here", "", now_s)) == (0, 0)


def test_passwords_rest_as_salted_hashes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "credentials"
    write = ["cli", "configure-credentials", "--file", str(file), "--password"]
    assert run_cli([*write, "old-word", "--user", "bo"]) == 0
    plain = CredentialsFile(file)
    assert plain.allow("bo", "old-word") and "--for-server" in caplog.text and "old-word" not in caplog.text
    assert run_cli([*write, "se:cret", "--user", "ana", "--for-server"]) == 0
    text = file.read_text()
    assert "old-word" not in text and "se:cret" not in text and "[users]" not in text
    for users in (plain, CredentialsFile(file)):  # the first one reads the file again by itself
        assert users.allow("ana", "se:cret") and users.allow("bo", "old-word")
        assert not users.allow("ana", "old-word") and not users.allow("eve", "se:cret") and not users.allow("ana", "")
    assert str(PasswordHash.of("x")) != str(PasswordHash.of("x"))
    file.write_text("broken")
    assert plain.allow("ana", "se:cret") and "stay as they were" in caplog.text


@pytest.mark.parametrize("text", ["x", "16384,8,1,AA==", f"{1 << 30},8,1,AA==,{'A' * 32}", f"3,8,1,AA==,{'A' * 32}"])
def test_hash_that_is_broken_or_takes_for_ever_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "credentials"
    file.write_text(f'[scrypt]\nana = "{text}"\n')
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="broken hash") as refused:
        read_credentials(file)
    assert text not in str(refused.value)


# -- passwords on the wire


def options(addr: str, **others: Any) -> CaptureOptions:
    given_options: dict[str, Any] = {
        "pd": "p:1",
        "kafka": KafkaAccess("k:1"),
        "zookeeper": ZooKeeperAccess("z:1"),
        "schema_registry": RegistryAccess("http://r"),
    }
    return CaptureOptions(**given_options, upstream=UpstreamId("u"), addr=addr, advertise_addr="here:1", **others)


def test_passwords_are_not_served_in_the_clear_beyond_loopback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "credentials"
    run_cli(["cli", "configure-credentials", "--file", str(file), "--user", "a", "--password", "b", "--for-server"])
    with pytest.raises(ConfigError, match="in the clear"):
        api_server(options("0.0.0.0:0", credentials=file))
    api_server(options("127.0.0.1:0", credentials=file)).close()
    assert "in the clear" not in caplog.text
    api_server(options("0.0.0.0:0")).close()
    assert "in the clear" in caplog.text


def test_password_is_not_forwarded_to_an_address_that_anybody_could_have_written() -> None:
    standby = Memory()
    standby.capture, standby.leader = ME, OTHER.capture_id
    standby.live = [replace(OTHER, address="192.0.2.1:8300")]
    answer = Api(standby, USERS).ask("POST", "/api/v2/owner/resign", headers=BASIC)
    assert "[api.forward_failed] a password goes to no other machine in the clear" in answer[1]["error_msg"]


def test_password_is_not_forwarded_to_a_server_of_another_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    store, own = authority.issue("tikv"), authority.issue("capture")
    impostor = ApiTls(ca_path=authority.path, cert_path=store.cert, key_path=store.key)
    ours = ApiTls(ca_path=authority.path, cert_path=own.cert, key_path=own.key, allowed_cn=("capture",))
    with closing(ApiServer("127.0.0.1:0", tls=impostor)) as server, server.serving(Memory()):
        client = ApiClient(url=f"https://{server.address}", tls=ours, user="ana", password="se:cret")
        with pytest.raises(ServerTlsError, match="common name is tikv, allowed: capture"):
            client.ask("POST", "/owner/resign")


def test_renewed_certificate_is_shown_without_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consumers.control.api.serving.server.RENEW_S", 0.1)
    authority = Authority(tmp_path)
    first = authority.issue("first")
    tls = ApiTls(ca_path=authority.path, cert_path=first.cert, key_path=first.key)
    with closing(ApiServer("127.0.0.1:0", tls=tls)) as server, server.serving(Memory()):

        def is_named(name: str) -> bool:
            client_tls = ApiTls(ca_path=authority.path, allowed_cn=(name,))
            try:
                return ApiClient(url=f"https://{server.address}", tls=client_tls).ask("GET", "/status").status == 200
            except ServerTlsError:
                return False

        assert is_named("first")
        Path(first.key).write_text("broken")
        second = authority.issue("second")
        Path(first.cert).write_bytes(Path(second.cert).read_bytes())
        assert is_named("first")
        Path(first.key).write_bytes(Path(second.key).read_bytes())
        wait_until(lambda: is_named("second"), lambda: None)
