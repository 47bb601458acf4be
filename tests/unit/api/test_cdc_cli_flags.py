"""Each verb and flag of `cdc cli`'s that the recorded calls lack: called once, with what it does to the bus.

docs/parity.md takes these calls and the recorded ones (test_cdc_cli_calls.py) as what stands behind verbs and flags.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from compose.cli import run_cli
from compose.stack.secure.certificates import Authority
from consumers.control.api.access.credentials import Credentials, read_credentials
from consumers.control.api.access.tls import ApiTls
from consumers.control.api.requests import FeedBody, feed_request
from consumers.control.api.serving.server import ApiServer
from schemas.ids import TableId
from tests.support.control.memory_bus import CHECKPOINT, ME, PD, URI, Memory, Shares

Effect = Callable[[Memory, str], bool]
CF: Final = ("default", "cf")


def _made(bus: Memory, key: tuple[str, str] = ("default", "new")) -> dict[str, Any]:
    info = bus.kept[key].info
    return {**info.config, "start_ts": info.start_ts, "target_ts": info.target_ts}


def _is_of_other(_: Memory, out: str) -> bool:
    return '"namespace": "other"' in out


CALLS: Final[dict[str, Effect]] = {
    f"changefeed create -c new -n other --sink-uri {URI}": lambda bus, _: ("other", "new") in bus.kept,
    f"changefeed create -c new -k other --sink-uri {URI}": lambda bus, _: ("other", "new") in bus.kept,
    f"changefeed create -c new -v --sink-uri {URI}": lambda bus, _: ("default", "new") in bus.kept,
    f"changefeed create -c new --sink-uri {URI} --start-ts {CHECKPOINT - 7}": lambda bus, _: (
        _made(bus)["start_ts"] == CHECKPOINT - 7
    ),
    f"changefeed create -c new --sink-uri {URI} --target-ts {CHECKPOINT + 7}": lambda bus, _: (
        _made(bus)["target_ts"] == CHECKPOINT + 7
    ),
    f"changefeed create -c new --sink-uri {URI} --config cf.toml": lambda bus, _: (
        _made(bus)["filter"] == {"rules": ["a.*"]}
    ),
    f"changefeed create -c new --sink-uri {URI} --schema-registry http://r": lambda bus, _: (
        _made(bus)["sink"]["schema-registry"] == "http://r"
    ),
    f"changefeed create -c new --sink-uri {URI} --no-confirm": lambda bus, _: (
        _made(bus)["ignore-ineligible-table"] is True
    ),
    f"changefeed create -c new --sink-uri {URI} --disable-gc-check": lambda bus, _: ("default", "new") in bus.kept,
    f"changefeed create -c new --sink-uri {URI} --upstream-pd {PD} --upstream-ca a": lambda bus, _: CF in bus.kept,
    f"changefeed create -c new --sink-uri {URI} --upstream-cert b --upstream-key c": lambda bus, _: CF in bus.kept,
    "changefeed update -c cf -n other --target-ts 470642030000000000 --no-confirm": lambda bus, _: (
        bus.kept["other", "cf"].info.target_ts == 470642030000000000
    ),
    "changefeed update -c cf --config cf.toml --no-confirm": lambda bus, _: (
        bus.kept[CF].info.config["filter"] == {"rules": ["a.*"]}
    ),
    "changefeed update -c cf --schema-registry http://r --no-confirm": lambda bus, _: (
        bus.kept[CF].info.config["sink"]["schema-registry"] == "http://r"
    ),
    f"changefeed update -c cf --target-ts 470642030000000000 --upstream-pd {PD} --no-confirm": lambda bus, _: (
        bus.kept[CF].info.target_ts == 470642030000000000
    ),
    "changefeed list -n other": _is_of_other,
    "changefeed query -c cf -n other": _is_of_other,
    "changefeed pause -c run -n other": lambda bus, _: bus.kept["other", "run"].state == "stopped",
    f"changefeed resume -c cf -n other --upstream-pd {PD}": lambda bus, _: bus.kept["other", "cf"].state == "normal",
    "changefeed remove -c cf -n other": lambda bus, _: ("other", "cf") not in bus.kept and CF in bus.kept,
    "changefeed statistics -c cf -n other -I 10ms --count 1": lambda _, out: "replication_gap" in out,
    "changefeed move-table -c cf -t 9 -d me --mode 1 --no-wait": lambda bus, _: (
        isinstance(bus.shares, Shares) and bus.shares.asked == [("move", 9, "me")]
    ),
    "changefeed move-table -c cf -t 9 --target-node-id me --wait": lambda bus, _: (
        isinstance(bus.shares, Shares) and bus.shares.asked == [("move", 9, "me")]
    ),
    "processor query -c run -p me -n other": lambda _, out: json.loads(out)["table_ids"] == [9],
    "tso query": lambda _, out: out.strip() == str(CHECKPOINT),
    "unsafe show-metadata": lambda _, out: out.startswith("Key: /tidebus/"),
    "unsafe resolve-lock --region 7 --ts 8": lambda _, out: json.loads(out) == {"region": 7, "ts": 8},
    f"unsafe resolve-lock --region 7 --upstream-pd {PD} -k default": lambda _, out: json.loads(out)["region"] == 7,
    "unsafe delete-service-gc-safepoint --no-confirm": lambda _, out: out == "deleted tidebus-default-u\n",
    f"unsafe --no-confirm delete-service-gc-safepoint -k default --upstream-pd {PD}": lambda _, out: (
        out == "deleted tidebus-default-u\n"
    ),
    "changefeed list --log-level debug": lambda _, out: '"id": "cf"' in out,
    "configure-credentials": lambda *_: read_credentials(Path("credentials")).users == {"alice": "hidden"},
}
"""Arguments below `tidebus cli`, and whether they have done what they are for. `cf` is stopped, `run` runs; both are in
the namespaces `default` and `other`."""


@pytest.fixture
def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Memory:
    (tmp_path / "cf.toml").write_text("[filter]\nrules = ['a.*']\n")
    monkeypatch.chdir(tmp_path)
    made = Memory()
    made.leader, made.table_ids = ME.capture_id, [TableId(9)]
    made.shares = Shares({ME.capture_id: [TableId(9)]})
    return made


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    with closing(ApiServer("127.0.0.1:0")) as server:
        yield server


@pytest.fixture
def server(api: ApiServer, bus: Memory) -> Iterator[str]:
    for namespace in ("default", "other"):
        for name in ("cf", "run"):
            bus.create(feed_request(FeedBody(changefeed_id=name, sink_uri=URI)), namespace)
        bus.pause("cf", namespace)
    with api.serving(bus):
        yield api.address


@pytest.mark.parametrize("call", CALLS)
def test_flag_of_cdc_cli_does_what_it_is_for(
    call: str, bus: Memory, server: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(["alice", "hidden", "hidden"])
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: next(answers))
    monkeypatch.setattr("click.termui.hidden_prompt_func", lambda _: next(answers))
    capsys.readouterr()
    where = ["--server", server] if "credentials" not in call else ["--file", "credentials"]
    status = run_cli(["cli", *call.split(), *where])
    shown = capsys.readouterr()
    assert status == 0, shown.err
    assert CALLS[call](bus, shown.out), (shown.out, shown.err)


def test_flags_of_every_verb_say_who_asks_and_whom_to_trust(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ca = Authority(tmp_path)
    own, client = ca.issue("capture"), ca.issue("operator")
    tls = ApiTls(ca_path=ca.path, cert_path=own.cert, key_path=own.key, mtls=True)
    with closing(ApiServer("127.0.0.1:0", tls=tls, credentials=Credentials({"ana": "word"}))) as server:
        verb = ["cli", "changefeed", "list", "--server", f"https://{server.address}"]
        trusted = ["--ca", ca.path, "--cert", client.cert, "--key", client.key, "--user", "ana"]
        with server.serving(Memory()):
            assert run_cli([*verb, *trusted, "--password", "word"]) == 0
            assert run_cli([*verb, *trusted, "--password", "guess"]) == 1
            assert run_cli([*verb, "--ca", ca.path, "--user", "ana", "--password", "word"]) == 1
    assert capsys.readouterr().out == "[]\n"


def test_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["--version"]) == 0
    assert re.fullmatch(r"tidebus \d+\.\d+\.\S+\n", capsys.readouterr().out)


def test_verbs_of_unsafe_refuse_another_upstream(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in (["resolve-lock", "--region", "7"], ["delete-service-gc-safepoint", "--no-confirm"]):
        assert run_cli(["cli", "unsafe", *verb, "--upstream-pd", "elsewhere:1", "--server", server]) == 2
        assert "another upstream" in capsys.readouterr().err
