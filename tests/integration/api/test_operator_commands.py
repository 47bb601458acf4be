"""Repairs of an upstream by the command line, against a region server."""

import json
from collections.abc import Iterator
from typing import cast

import pytest

from compose.cli import run_cli
from edges.zookeeper.session import Session
from producers.pull.pd.client import PdClient
from producers.pull.pd.safe_point import keep_safe_point
from producers.pull.puller import PullerSettings
from producers.region_server.core.store.commands import Commit, Mutation, Prewrite, Txn
from producers.region_server.server import RegionServer
from schemas.ids import TableId, Ts, UpstreamId, compose_ts, physical_ms
from schemas.tidb.keys import meta_hash_key, row_key
from tests.support.control.served_bus import places_of, served_bus
from tests.support.control.stored_zookeeper import MemorySession

NEVER_EXPIRES_S = (1 << 63) - 1
KEYS = [row_key(TableId(45), number) for number in (1, 500, 900)]


@pytest.fixture
def server() -> Iterator[RegionServer]:
    with RegionServer() as server:
        yield server


@pytest.fixture
def api(server: RegionServer) -> Iterator[list[str]]:
    """--server of a capture whose ZooKeeper these commands do not need."""
    places = places_of(server.pd_address, "", "", "c", "u")
    with served_bus(cast(Session, MemorySession()), places, registered=False) as url:
        yield ["--server", url]


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run_cli(list(arguments)) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def regions_with_locks(server: RegionServer) -> dict[int, set[bytes]]:
    return server.act(
        lambda store: {int(region.region_id): set(region.data.locks) for region in store.regions if region.data.locks}
    )


def test_unsafe_resolve_lock_ends_what_a_crashed_writer_left_in_that_region_only(
    server: RegionServer, api: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    server.act(lambda store: store.split(KEYS[2]))
    start_ts = compose_ts(physical_ms(server.tso()) - 60_000)
    for number, key in enumerate(KEYS):
        txn = Txn(start_ts=Ts(start_ts + number), primary=key)
        server.apply(Prewrite(txn=txn, mutations=(Mutation("put", key, b"value"),)))
    locked = regions_with_locks(server)
    assert len(locked) == 2
    region = next(region for region, keys in locked.items() if keys == {KEYS[2]})
    shown = ask(capsys, "unsafe", "resolve-lock", *api, "--region", str(region), "--no-confirm")
    assert json.loads(shown) == {"region": region, "committed": 0, "rolled_back": 1, "left_alive": [], "troubles": []}
    assert set().union(*regions_with_locks(server).values()) == set(KEYS[:2])


def test_unsafe_resolve_lock_of_an_unknown_region_says_so(
    server: RegionServer, api: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["unsafe", "resolve-lock", *api, "--region", "987654", "--no-confirm"]
    assert run_cli(arguments) == 1
    assert "[producer.regions_unknown]" in capsys.readouterr().err


def test_unsafe_commands_that_are_not_confirmed_do_nothing(
    api: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("click.confirm", _refuse)
    assert run_cli(["unsafe", "delete-service-gc-safepoint", *api]) == 130


def test_unsafe_delete_service_gc_safepoint_takes_the_bus_entry_away(
    server: RegionServer, api: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    service_id = PullerSettings(cluster="c").gc_service_id(UpstreamId("u"))
    pd = PdClient(server.pd_address)
    try:
        kept_ts = server.tso()
        keep_safe_point(pd, service_id, kept_ts, 600)
        later_ts = Ts(kept_ts + 100)
        assert pd.update_service_gc_safe_point("gc_worker", later_ts, NEVER_EXPIRES_S) == kept_ts - 1
        assert service_id in ask(capsys, "cli", "unsafe", "delete-service-gc-safepoint", "--no-confirm", *api)
        assert pd.update_service_gc_safe_point("gc_worker", later_ts, NEVER_EXPIRES_S) == later_ts
    finally:
        pd.close()


def put_database(server: RegionServer, schema_id: int) -> None:
    key, start_ts = meta_hash_key(b"DBs", b"DB:%d" % schema_id), server.tso()
    value = json.dumps({"id": schema_id, "db_name": {"O": "d", "L": "d"}, "state": 5}).encode()
    txn = Txn(start_ts=start_ts, primary=key)
    server.apply(Prewrite(txn=txn, mutations=(Mutation("put", key, value),)))
    server.apply(Commit(start_ts=start_ts, commit_ts=server.tso(), keys=[key]))


@pytest.mark.parametrize("legacy", [[], ["--legacy-safepoint"]])
def test_unsafe_verify_gc_safepoint_reads_the_databases_of_then(
    server: RegionServer, legacy: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    verify = ["cli", "unsafe", "verify-gc-safepoint", "--pd", server.pd_address, "-k", "default", *legacy]
    assert run_cli(verify) == 1
    assert "[producer.snapshot_failed] PD has no safe point" in capsys.readouterr().err
    put_database(server, 7)
    then_ts = server.tso()
    put_database(server, 8)
    assert server.act(lambda _: server.pd.collect(then_ts)) == then_ts
    assert ask(capsys, *verify) == f"GC safepoint verified, snapshot-ts: {then_ts}, databases: 1\n"
    assert run_cli([*verify, "-k", "other"]) == 2


def test_tso_query_grows(api: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (int(ask(capsys, "cli", "tso", "query", *api)) for _ in range(2))
    assert first < second


def _refuse(*_: object, abort: bool, **_more: object) -> None:
    import click

    assert abort
    raise click.Abort
