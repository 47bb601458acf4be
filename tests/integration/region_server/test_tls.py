"""TLS to PD and the stores: it works with the right files, and says what is wrong with the wrong ones."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from compose.cli import run_cli
from compose.stack.secure.certificates import Authority, Pair
from producers.errors import PdUnreachableError, StoreUnavailableError, TlsFileError, TlsRefusedError
from producers.pull.ddl.schema_snapshot import SnapshotReader
from producers.pull.feed.event_feed import EventFeed
from producers.pull.locks.kv_client import KvClient
from producers.pull.locks.resolver import LockResolver
from producers.pull.pd.client import PdClient
from producers.pull.pd.region_cache import RegionCache
from producers.region_server.core.store.commands import Commit, Mutation, Prewrite, Txn
from producers.region_server.nodes import PdNode, StoreNode
from producers.region_server.rpc.server_tls import ServerTls
from producers.region_server.server import RegionServer
from producers.tls import Channels, TlsSettings
from schemas.errors import Action
from schemas.ids import StoreId, TableId
from schemas.tidb.keys import row_key
from schemas.tidb.spans import TableSpan
from tests.support.upstream.feed_sink import Collected, wait_until

pytestmark = pytest.mark.integration

TABLE = TableId(45)
SPAN = TableSpan.of_table(TABLE)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Return a CA that signs servers and clients."""
    return Authority(tmp_path)


def settings(authority: Authority, pair: Pair | None, **more: object) -> TlsSettings:
    """Return a client's settings."""
    files = {"cert_path": pair.cert, "key_path": pair.key} if pair else {}
    return TlsSettings(ca_path=authority.path, **files, **more)  # type: ignore[arg-type]


def server_tls(authority: Authority, pair: Pair) -> ServerTls:
    """Return a server's settings."""
    return ServerTls(ca_path=authority.path, cert_path=pair.cert, key_path=pair.key)


@contextmanager
def pd_client(addresses: str, tls: TlsSettings, deadline_s: float = 30.0) -> Iterator[PdClient]:
    """Give a client that is closed in the end."""
    pd = PdClient(addresses, channels=Channels(tls), deadline_s=deadline_s)
    try:
        yield pd
    finally:
        pd.close()


def test_tls_right_files_then_pd_feed_locks_and_snapshot_go_over_it(authority: Authority) -> None:
    tls = settings(authority, authority.issue("tidebus"), allowed_cn=("tidb-server",))
    sink = Collected()
    key, served = row_key(TABLE, 1), server_tls(authority, authority.issue("tidb-server"))
    with (
        RegionServer(stores=2, min_ts_interval_ms=50, tls=served) as server,
        pd_client(f"https://{server.pd_address}", tls) as pd,
    ):
        cache = RegionCache(pd)
        feed = EventFeed(cache, sink, sink.errors.append)
        feed.start()
        try:
            feed.subscribe(SPAN, pd.now())
            txn = Txn(start_ts=server.tso(), primary=key)
            server.apply(Prewrite(txn=txn, mutations=(Mutation("put", key, b"value"),)))
            commit_ts = server.tso()
            server.apply(Commit(start_ts=txn.start_ts, commit_ts=commit_ts, keys=(key,)))
            wait_until(lambda: sink.resolved_ts[TABLE] > commit_ts, feed.status)
            assert [change[:2] for change in sink.changes] == [(commit_ts, txn.start_ts)]
            resolver = LockResolver(KvClient(cache))
            assert resolver.resolve_range(SPAN.start, SPAN.end, pd.now()).troubles == ()
            resolver.close()
            reader = SnapshotReader(cache, pd.now())
            assert list(reader.scan(SPAN.start, SPAN.end)) == [(key, b"value")]
            reader.close()
        finally:
            feed.stop()


def test_tls_server_is_wrong_then_the_error_says_how_and_comes_at_once(authority: Authority, tmp_path: Path) -> None:
    client = settings(authority, authority.issue("tidebus"))
    stranger = Authority(tmp_path, "stranger")
    cases = {
        "certificate has expired": authority.issue("old", days=(-30, -1)),
        "certificate is not yet valid": authority.issue("new", days=(1, 30)),
        "unable to get local issuer certificate": stranger.issue("other"),
        "IP address mismatch": authority.issue("elsewhere", hosts=("10.9.8.7",)),
    }
    for reason, pair in cases.items():
        with (
            RegionServer(stores=1, tls=server_tls(authority, pair)) as server,
            pd_client(server.pd_address, client) as pd,
            pytest.raises(TlsRefusedError, match=reason) as caught,
        ):
            pd.now()
        assert caught.value.action is Action.STOP_CHANGEFEED
        assert caught.value.fields["address"] == server.pd_address


def installed(authority: Authority, folder: Path) -> TlsSettings:
    """Put a client's files where they are looked for, in place of those that were there."""
    folder.mkdir(exist_ok=True)
    pair = authority.issue("tidebus")
    for source, name in ((authority.path, "ca.pem"), (pair.cert, "client.pem"), (pair.key, "client.key")):
        shutil.copy(source, folder / name)
    return TlsSettings(
        ca_path=str(folder / "ca.pem"), cert_path=str(folder / "client.pem"), key_path=str(folder / "client.key")
    )


def test_tls_files_are_renewed_then_a_client_of_pd_takes_them_up(tmp_path: Path) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    tls = installed(old, tmp_path / "client")
    with (
        RegionServer(stores=1, tls=server_tls(old, old.issue("server"))) as server,
        pd_client(server.pd_address, tls) as pd,
    ):
        assert pd.now()
        installed(new, tmp_path / "client")
        restart(server, server.pd_nodes[0], server_tls(new, new.issue("server")))
        assert pd.now()


def test_tls_files_are_renewed_then_calls_to_stores_take_them_up(tmp_path: Path) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    tls = installed(old, tmp_path / "client")
    with (
        RegionServer(stores=1, tls=server_tls(old, old.issue("server"))) as server,
        pd_client(server.pd_address, tls) as pd,
    ):
        resolver = LockResolver(KvClient(RegionCache(pd)))
        assert resolver.resolve_range(SPAN.start, SPAN.end, pd.now()).troubles == ()
        installed(new, tmp_path / "client")
        for node in (server.pd_nodes[0], server.nodes[StoreId(1)]):
            restart(server, node, server_tls(new, new.issue("server")))
        wait_until(lambda: resolver.resolve_range(SPAN.start, SPAN.end, pd.now()).troubles == (), lambda: "refused")
        resolver.close()


def test_tls_file_is_away_while_pd_and_a_store_restart_then_all_goes_on_with_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = replace(installed(authority, tmp_path / "client"), allowed_cn=("server",))
    served, sink = server_tls(authority, authority.issue("server")), Collected()
    with (
        RegionServer(stores=1, min_ts_interval_ms=50, tls=served) as server,
        pd_client(server.pd_address, tls, deadline_s=1.0) as pd,
    ):
        cache = RegionCache(pd)
        feed, resolver = EventFeed(cache, sink, sink.errors.append), LockResolver(KvClient(cache))
        feed.start()
        try:
            feed.subscribe(SPAN, pd.now())
            wait_until(lambda: sink.resolved_ts[TABLE] > 0, feed.status)
            key = Path(tls.key_path)
            away = key.rename(key.with_suffix(".away"))
            for node in (server.pd_nodes[0], server.nodes[StoreId(1)]):
                restart(server, node, served)
            wait_until(lambda: "producer.tls_file" in feed.status()[0].reason, feed.status)
            with pytest.raises(PdUnreachableError, match=r"producer\.tls_file"):
                pd.now()
            away.rename(key)
            after_ts = pd.now()
            wait_until(lambda: sink.resolved_ts[TABLE] > after_ts, feed.status)
            assert resolver.resolve_range(SPAN.start, SPAN.end, pd.now()).troubles == ()
        finally:
            feed.stop()
            resolver.close()
    assert sink.errors == []


def restart(server: RegionServer, node: PdNode | StoreNode, tls: ServerTls) -> None:
    """End a PD or a store, and start it with another certificate."""
    node._tls = tls
    port = server.call(node.stop())
    server.call(node.start(port or 0))


def test_tls_common_name_is_not_allowed_then_both_are_named(authority: Authority) -> None:
    tls = settings(authority, authority.issue("tidebus"), allowed_cn=("pd-server", "tikv-server"))
    with (
        RegionServer(stores=1, tls=server_tls(authority, authority.issue("impostor"))) as server,
        pd_client(server.pd_address, tls) as pd,
        pytest.raises(TlsRefusedError, match="is impostor, allowed: pd-server, tikv-server"),
    ):
        pd.now()


def test_tls_server_wants_another_client_then_the_error_names_our_certificate(
    authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger")
    pair = stranger.issue("unknown")
    with RegionServer(stores=1, tls=server_tls(authority, authority.issue("tidb-server"))) as server:
        with (
            pd_client(server.pd_address, settings(authority, pair)) as pd,
            pytest.raises(TlsRefusedError, match=f"the server refuses our certificate .*{Path(pair.cert).name}"),
        ):
            pd.now()
        with (
            pd_client(server.pd_address, settings(authority, None)) as pd,
            pytest.raises(TlsRefusedError, match="none given"),
        ):
            pd.now()


def test_tls_on_one_side_only_then_the_call_fails_with_a_reason(authority: Authority) -> None:
    pair = authority.issue("any")
    with (
        RegionServer(stores=1) as plain,
        pd_client(plain.pd_address, settings(authority, pair), deadline_s=1.0) as pd,
        pytest.raises((TlsRefusedError, PdUnreachableError)),
    ):
        pd.now()
    with (
        RegionServer(stores=1, tls=server_tls(authority, pair)) as server,
        pd_client(server.pd_address, TlsSettings(), deadline_s=1.0) as pd,
        pytest.raises(PdUnreachableError),
    ):
        pd.now()
    with pytest.raises(TlsFileError, match="https"):
        PdClient("https://127.0.0.1:2379")


def test_tls_store_cannot_be_trusted_then_its_span_says_so_and_goes_on_when_it_can(
    authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger")
    bad, good = stranger.issue("bad"), authority.issue("good")
    tls = settings(authority, authority.issue("tidebus"))
    sink = Collected()
    with RegionServer(stores=1, min_ts_interval_ms=50, tls=server_tls(authority, good)) as server:
        node = server.nodes[StoreId(1)]
        node._tls = server_tls(authority, bad)
        server.call(node.start(server.call(node.stop())))
        with pd_client(server.pd_address, tls) as pd:
            feed = EventFeed(RegionCache(pd), sink, sink.errors.append)
            feed.start()
            try:
                with pytest.raises(StoreUnavailableError, match="unable to get local issuer certificate"):
                    RegionCache(pd).address(StoreId(1))
                feed.subscribe(SPAN, pd.now())
                wait_until(lambda: "producer.tls_refused" in feed.status()[0].reason, feed.status)
                assert "unable to get local issuer certificate" in feed.status()[0].reason
                node._tls = server_tls(authority, good)
                server.call(node.start(server.call(node.stop())))
                after_ts = pd.now()
                wait_until(lambda: sink.resolved_ts[TABLE] > after_ts, feed.status)
            finally:
                feed.stop()
    assert sink.errors == []


def test_tls_files_are_wrong_then_the_start_fails_and_names_them(authority: Authority, tmp_path: Path) -> None:
    good, other = authority.issue("one"), authority.issue("two")
    expired = authority.issue("gone", days=(-30, -1))
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate")
    right = settings(authority, good)
    cases = [
        (replace(right, ca_path=str(tmp_path / "no.pem")), r"no\.pem.*No such file"),
        (replace(right, key_path=str(tmp_path / "no-key.pem")), r"no-key\.pem.*No such file"),
        (replace(right, ca_path=str(garbage)), r"no CA certificate.*garbage\.pem"),
        (replace(right, cert_path=str(garbage)), r"garbage\.pem"),
        (replace(right, key_path=other.key), r"key does not match the certificate.*one\.pem.*two-key\.pem"),
        (settings(authority, expired), r"gone\.pem.*certificate has expired"),
        (replace(right, key_path=""), "certificate and key come together"),
        (replace(right, ca_path=""), "needs a CA"),
        (TlsSettings(allowed_cn=("pd",)), "needs a CA"),
    ]
    for wrong, said in cases:
        with pytest.raises(TlsFileError, match=said) as caught:
            Channels(wrong)
        assert caught.value.code == "producer.tls_file"
    Channels(right)


def test_doctor_with_pd_and_tls_then_it_says_who_can_be_trusted(
    authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = authority.issue("tidebus")

    def doctor(server: RegionServer, key: str, *more: str) -> tuple[int, str]:
        files = ["--ca", authority.path, "--cert", pair.cert, "--key", key]
        status = run_cli(["doctor", "--pd", server.pd_address, *files, *more])
        return status, capsys.readouterr().out

    with RegionServer(stores=2, tls=server_tls(authority, authority.issue("tidb-server"))) as server:
        _, said = doctor(server, pair.key)
        assert f"ok    pd      cluster {server.options.cluster_id}" in said
        assert all(f"ok    store {store_id}" in said for store_id in server.nodes)
        status, said = doctor(server, pair.key, "--cert-allowed-cn", "pd-server")
        assert status == 1
        assert "FAIL  pd      [producer.tls_refused]" in said
        assert "common name of the server's certificate is tidb-server, allowed: pd-server" in said
        status, said = doctor(server, "no-such-key.pem")
        assert status == 1
        assert "FAIL  tls     [producer.tls_file] file cannot be read (file=no-such-key.pem" in said
