"""Who gets into the API: users of a credentials file, TLS and client certificates."""

import base64
import stat
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from compose.cli import run_cli
from compose.operator.api_calls import ApiCalls, ApiRefusedError
from compose.stack.secure.certificates import Authority
from consumers.control.api.access.credentials import Credentials, read_credentials, write_credentials
from consumers.control.api.access.errors import ApiTlsError
from consumers.control.api.access.tls import ApiTls
from consumers.control.api.client import ApiClient, ServerTlsError, ServerUnreachableError
from consumers.control.api.serving.server import ApiServer
from schemas.errors import ConfigError
from tests.support.control.api import Api
from tests.support.control.memory_bus import ME, OTHER, Memory, Shares

USERS = Credentials({"ana": "se:cret", "bo": "x"})


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def test_api_with_users_lets_in_only_them() -> None:
    api = Api(Memory(), USERS)
    path = "/api/v2/captures"
    assert api.ask("GET", path, headers=basic("ana", "se:cret"))[0] == 200
    refused = [{}, basic("ana", "x"), basic("bo", ""), basic("", ""), basic("eve", "x"), {"Authorization": "Basic ?"}]
    for headers in (*refused, {"Authorization": "Bearer x"}, {"Authorization": "Basic /w=="}):
        status, shown = api.ask("GET", path, headers=headers)
        assert (status, shown["error_code"]) == (401, "CDC:ErrUnauthorized")
    assert api.http.get(path).headers["WWW-Authenticate"].startswith("Basic")
    assert api.ask("POST", "/admin/log", "info")[0] == api.ask("GET", "/debug/pprof/heap")[0] == 401


def test_api_with_users_answers_probes_without() -> None:
    api = Api(Memory(), USERS)
    for path in ("/status", "/api/v2/status", "/api/v2/health", "/metrics"):
        assert api.http.get(path).status_code == 200


def test_credentials_file_is_its_owners_alone_and_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "new" / "credentials"
    users = {"ana": 'qu"ote\\', "b.o": "ключ\x7f\t", "c": "3"}
    for user, password in users.items():
        write_credentials(file, user, "old")
        write_credentials(file, user, password)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_credentials(file).users == users
    assert "old" not in repr(read_credentials(file))
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_credentials(file)


@pytest.mark.parametrize("text", ["", "users = 3", "[users]", "[users]\nana = 5", "[users]\nana = ''", "[users"])
def test_credentials_file_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "credentials"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="credentials file"):
        read_credentials(file)


def test_configure_credentials_writes_what_the_command_line_then_uses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"
    monkeypatch.setattr("compose.cli.options.server.CREDENTIALS_DEFAULT", tmp_path / "none")  # may be missing
    write = ["cli", "configure-credentials", "--file", str(file), "--user", "ana", "--password"]
    assert run_cli([*write, "se:cret"]) == 0
    with closing(ApiServer("127.0.0.1:0", credentials=USERS)) as server, server.serving(Memory()):
        ask = ["cli", "capture", "list", "--server", server.address, "--credentials"]
        assert run_cli([*ask, str(tmp_path / "none")]) == 1
        assert "configure-credentials" in capsys.readouterr().err
        assert run_cli([*ask, str(file)]) == 0
        assert run_cli([*ask, str(tmp_path / "none"), "--user", "bo", "--password", "x"]) == 0
        assert run_cli([*write, "wrong"]) == 0
        assert run_cli([*ask, str(file)]) == 1


def test_https_serves_who_trusts_its_ca_and_refuses_others_with_a_reason(tmp_path: Path) -> None:
    ca, strange = Authority(tmp_path), Authority(tmp_path, "strange")
    own = ca.issue("capture")
    tls = ApiTls(ca_path=ca.path, cert_path=own.cert, key_path=own.key)
    with closing(ApiServer("127.0.0.1:0", tls=tls)) as server, server.serving(Memory()):
        url = f"https://{server.address}"
        assert ApiCalls(ApiClient(url=url, tls=ApiTls(ca_path=ca.path))).get("/status")["id"] == "me"
        with pytest.raises(ServerTlsError, match="--ca names whom to trust"):
            ApiClient(url=url, tls=ApiTls(ca_path=strange.path)).ask("GET", "/status")
        with pytest.raises(ServerTlsError, match="--ca names whom to trust"):
            ApiClient(url=url).ask("GET", "/status")
        with pytest.raises(ServerUnreachableError, match="wants https"):
            ApiClient(url=f"http://{server.address}").ask("GET", "/status")
    with closing(ApiServer("127.0.0.1:0")) as plain, pytest.raises(ServerTlsError, match="does not speak TLS"):
        ApiClient(url=f"https://{plain.address}", tls=ApiTls(ca_path=ca.path)).ask("GET", "/status")


@pytest.mark.parametrize("by_name", [False, True])
def test_https_that_wants_certificates_takes_only_those_that_are_allowed(tmp_path: Path, by_name: bool) -> None:
    ca, strange = Authority(tmp_path), Authority(tmp_path, "strange")
    own, client, other = ca.issue("capture"), ca.issue("operator"), ca.issue("stranger")
    forged = strange.issue("forged")
    names = ("operator", "capture") if by_name else ()
    tls = ApiTls(ca_path=ca.path, cert_path=own.cert, key_path=own.key, allowed_cn=names, mtls=not by_name)
    with closing(ApiServer("127.0.0.1:0", tls=tls)) as server, server.serving(Memory()):

        def ask(cert: str = "", key: str = "") -> int:
            shown = ApiTls(ca_path=ca.path, cert_path=cert, key_path=key)
            return ApiClient(url=f"https://{server.address}", tls=shown).ask("GET", "/status").status

        assert ask(client.cert, client.key) == 200
        for refused in ((), (forged.cert, forged.key), *(((other.cert, other.key),) if by_name else ())):
            with pytest.raises(ServerTlsError, match="certificate"):
                ask(*refused)


def test_https_standby_asks_the_owner_with_its_certificate(tmp_path: Path) -> None:
    ca = Authority(tmp_path)
    own = ca.issue("capture")
    tls = ApiTls(ca_path=ca.path, cert_path=own.cert, key_path=own.key, mtls=True)
    standby, owner = Memory(), Memory()
    owner.shares = Shares({ME.capture_id: []})
    with ExitStack() as stack:
        servers = [stack.enter_context(closing(ApiServer("127.0.0.1:0", tls=tls, credentials=USERS))) for _ in range(2)]
        for bus, server, capture in zip((standby, owner), servers, (ME, OTHER), strict=True):
            bus.capture, bus.leader = capture, OTHER.capture_id
            stack.enter_context(server.serving(bus))
        standby.live = [replace(OTHER, address=servers[1].address)]
        calls = ApiCalls(ApiClient(url=f"https://{servers[0].address}", tls=tls, user="bo", password="x"))
        assert calls.call("POST", "/owner/resign") == {}
        assert owner.shares.asked == [("resign",)]
        with pytest.raises(ApiRefusedError, match="ErrUnauthorized"):
            ApiCalls(ApiClient(url=calls.client.url, tls=tls)).call("POST", "/owner/resign")


def test_tls_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    ca = Authority(tmp_path)
    first, second = ca.issue("one"), ca.issue("two")
    for tls, said in (
        (ApiTls(cert_path=first.cert), "come together"),
        (ApiTls(cert_path=first.cert, key_path=second.key), "no certificate with its unencrypted key"),
        (ApiTls(cert_path=first.cert, key_path=first.key, mtls=True), "give --ca"),
        (ApiTls(cert_path=first.cert, key_path=first.key, ca_path=str(tmp_path / "no")), "cannot be read"),
        (ApiTls(cert_path=first.cert, key_path=first.key, ca_path=first.key), "no CA certificate"),
    ):
        with pytest.raises(ApiTlsError, match=said):
            ApiServer("127.0.0.1:0", tls=tls)
