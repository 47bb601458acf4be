"""A TiCDC's changefeeds judged, written as files and taken over: by the answers of recorded TiCDCs of both kinds."""

import json
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from compose.cli import run_cli
from consumers.control.api.serving.server import ApiServer
from schemas.config.changefeed import load_changefeed
from schemas.config.settings import ChangefeedFile
from schemas.errors import ConfigError
from schemas.ids import Ts, UpstreamId
from tests.support.control.memory_bus import Memory
from tests.support.recorded.recorded_ticdc import LIST, RecordedTicdc, recorded_ticdc

CLUSTER = 7710984578950582642
"""Of the recorded TiDB."""
Run = Callable[..., tuple[int, str, str]]


class Bus(Memory):
    """A bus over the recorded TiDB."""

    cluster_id = CLUSTER

    def upstream_id(self, upstream: UpstreamId) -> int:
        return self.cluster_id


@pytest.fixture
def bus() -> Bus:
    return Bus()


@pytest.fixture(params=["classic", "new"])
def ticdc(request: pytest.FixtureRequest) -> Iterator[RecordedTicdc]:
    with recorded_ticdc(request.param) as running:
        # The recording shows `db` in lists, and never by itself.
        running.listed = [item for item in running.listed if item["id"] in running.infos]
        yield running


@pytest.fixture
def run(bus: Bus, ticdc: RecordedTicdc, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Run the command; return the exit status and what it printed on either side."""
    with closing(ApiServer("127.0.0.1:0")) as server, server.serving(bus):

        def ask(*more: str) -> tuple[int, str, str]:
            status = run_cli(["migrate", "--ticdc", ticdc.url, "--server", server.address, *more])
            shown = capsys.readouterr()
            return status, shown.out, shown.err

        yield ask


def test_files_hold_what_is_set_and_load_as_the_same_settings(run: Run, ticdc: RecordedTicdc, tmp_path: Path) -> None:
    status, _, said = run("--out", str(tmp_path), "-c", "full")
    text = (tmp_path / "full.toml").read_text()
    assert (status, said) == (0, f"wrote {tmp_path / 'full.toml'}\n")
    assert stat.S_IMODE((tmp_path / "full.toml").stat().st_mode) == 0o600
    config = load_changefeed(ticdc.infos["full"]["sink_uri"], text)
    # As the recording's README tells of the changefeed's file.
    assert config.filter.rules == ("*.*", "!test.*")
    assert [(rule.matcher, rule.ignore_event) for rule in config.filter.event_filters] == [
        (("bank.log",), ("drop table", "truncate table"))
    ]
    (dispatcher,) = config.sink.dispatchers
    assert (dispatcher.matcher, dispatcher.partition, dispatcher.topic) == (
        ("bank.*",),
        "index-value",
        "{schema}_{table}",
    )
    assert config.mounter.worker_num == 8
    assert config.kafka.partition_num == 2
    # Nothing that is by default, of the hundred settings that the API shows.
    assert "memory-quota" not in text
    assert config.memory_quota_bytes == ChangefeedFile().memory_quota_bytes


@pytest.mark.parametrize(
    ("uri", "config", "wanted"),
    [
        (
            "file:///data/x?protocol=csv",
            {"sink": {"csv": {"delimiter": "|", "quote": "", "null": "", "binary_encoding_method": ""}}},
            {"sink": {"csv": {"delimiter": "|", "quote": "", "null": ""}}},
        ),
        (
            "file:///data/x?protocol=csv",
            {"sink": {"terminator": "", "date_separator": "", "schema_registry": "", "kafka_config": {"ca": ""}}},
            {"sink": {"terminator": ""}},
        ),
        (
            "mysql://root@h:4000/",
            {"sink": {"mysql_config": {"time_zone": "", "ssl_ca": ""}}, "consistent": {"level": "", "storage": ""}},
            {"sink": {"mysql-config": {"time-zone": ""}}},
        ),
    ],
)
def test_empty_text_is_kept_where_it_is_no_default(
    run: Run, ticdc: RecordedTicdc, bus: Bus, uri: str, config: dict[str, object], wanted: dict[str, object]
) -> None:
    ticdc.infos["plain"] = {**ticdc.infos["plain"], "sink_uri": uri, "config": config}
    assert run("--take-over", "--tz", "UTC", "--no-confirm", "-c", "plain")[0] == 0
    assert bus.kept["default", "plain"].info.config == {**wanted, "ignore-ineligible-table": True}


def test_verdict_names_each_setting_that_differs_and_changes_nothing(run: Run, ticdc: RecordedTicdc, bus: Bus) -> None:
    status, shown, _ = run()
    by_name = {line.split(":")[0]: line for line in shown.splitlines() if not line.startswith(" ")}
    assert status == 0
    assert sorted(by_name) == sorted(item["id"] for item in ticdc.listed)
    assert "normal, kafka://127.0.0.1:26898/rec_full?" in by_name["full"]
    assert "  differs: mounter.worker-num has no effect: Spark's parallelism decides" in shown
    assert ticdc.posted == []
    assert bus.kept == {}


def test_take_over_pauses_there_and_creates_at_the_checkpoint_of_the_pause(
    run: Run, ticdc: RecordedTicdc, bus: Bus
) -> None:
    checkpoint_ts, before_ts = ticdc.stopped["full"]["checkpoint_ts"], ticdc.infos["full"]["checkpoint_ts"]
    status, shown, _ = run("--take-over", "--tz", "UTC", "--no-confirm", "-c", "full")
    info = bus.kept["default", "full"].info
    assert status == 0
    assert checkpoint_ts > before_ts
    assert (info.start_ts, info.sink_uri) == (Ts(checkpoint_ts), ticdc.infos["full"]["sink_uri"])
    assert info.config["filter"]["rules"] == ["*.*", "!test.*"]
    assert ticdc.posted == ["pause full"]
    assert f"full: taken over at {checkpoint_ts}; paused there. To go back:" in shown
    assert f"cdc cli changefeed resume --server {ticdc.url} -c full --overwrite-checkpoint-ts TSO" in shown


@pytest.mark.parametrize("force_replicate", [False, True])
def test_tables_without_a_key_are_left_out_as_there(
    run: Run, ticdc: RecordedTicdc, bus: Bus, force_replicate: bool
) -> None:
    bus.ineligible = [{"database_name": "d", "table_name": "log", "table_id": 2, "is_partition": False}]
    asked = {"force_replicate": force_replicate, "ignore_ineligible_table": False}
    config = {**ticdc.infos["full"]["config"], **asked}
    ticdc.infos["full"] = {**ticdc.infos["full"], "config": config}
    status, _, said = run("--take-over", "--tz", "UTC", "--no-confirm", "-c", "full")
    taken = bus.kept["default", "full"].info.config
    assert (status, taken.get("ignore-ineligible-table", False)) == (0, not force_replicate)
    assert ("full: tables without a key are left out, as by TiCDC: d.log\n" in said) is not force_replicate


@pytest.mark.parametrize(
    ("tz", "text"), [((), "give by --tz"), (("--tz", "Asia/Shanghai"), "start them with that one by --tz")]
)
def test_changefeed_whose_times_may_shift_is_not_taken_over(
    run: Run, ticdc: RecordedTicdc, bus: Bus, tz: tuple[str, ...], text: str
) -> None:
    status, shown, said = run("--take-over", *tz, "--no-confirm", "-c", "full")
    assert status == 1
    assert "  zone: TIMESTAMPs come in that of our captures (--tz)" in shown
    assert "[migrate.zone_unknown]" in said and text in said and "changefeeds=full" in said and "here=UTC" in said
    assert ticdc.posted == []
    assert bus.kept == {}


def test_database_is_taken_over_whatever_the_zone(run: Run, ticdc: RecordedTicdc, bus: Bus) -> None:
    uri = "mysql://root@127.0.0.1:4000/"
    ticdc.infos["plain"] = {**ticdc.infos["plain"], "sink_uri": uri, "config": {}}
    status, shown, _ = run("--take-over", "--no-confirm", "-c", "plain")
    assert (status, "zone:" in shown) == (0, False)
    assert bus.kept["default", "plain"].info.sink_uri == uri


@pytest.mark.parametrize("given", [(), ("--sink-uri", "plain=mysql://root:p@h?worker-count=8")])
def test_database_without_a_port_is_taken_over_with_ticdcs(
    run: Run, ticdc: RecordedTicdc, bus: Bus, given: tuple[str, ...]
) -> None:
    uri = "mysql://root:xxxxx@h?worker-count=8" if given else "mysql://root:p@h?worker-count=8"
    ticdc.infos["plain"] = {**ticdc.infos["plain"], "sink_uri": uri, "config": {}}
    status, shown, _ = run("--take-over", "--no-confirm", "-c", "plain", *given)
    assert (status, "names no port" in shown, "mysql://***@h:4000?" in shown) == (0, False, True)
    assert bus.kept["default", "plain"].info.sink_uri == "mysql://root:p@h:4000?worker-count=8"


def test_what_cannot_be_created_here_goes_on_there(run: Run, ticdc: RecordedTicdc, bus: Bus) -> None:
    ticdc.stopped["full"] = {**ticdc.stopped["full"], "checkpoint_ts": 9}  # the raw log of this bus begins at 10
    status, _, said = run("--take-over", "--tz", "UTC", "--no-confirm", "-c", "full")
    assert status == 1
    assert "[migrate.not_taken_over]" in said
    assert "there=goes on" in said
    assert "start-ts is older than the raw log" in said
    assert ticdc.posted == ["pause full", "resume full"]
    assert bus.kept == {}


def test_changefeed_that_cannot_go_on_there_either_is_said_to_stand(run: Run, ticdc: RecordedTicdc) -> None:
    ticdc.stopped["full"] = {**ticdc.stopped["full"], "checkpoint_ts": 9}
    ticdc.refused[f"{LIST}/full/resume"] = (500, {"error_code": "CDC:ErrOwnerNotFound", "error_msg": "owner not found"})
    status, _, said = run("--take-over", "--tz", "UTC", "--no-confirm", "-c", "full")
    assert status == 1
    assert "there=paused; `cdc cli changefeed resume` is for you to run" in said


def test_bus_of_another_tidb_takes_nothing_over(run: Run, ticdc: RecordedTicdc, bus: Bus) -> None:
    bus.cluster_id = 7
    status, _, said = run("--take-over", "--tz", "UTC", "--no-confirm", "-c", "full")
    assert status == 1
    assert f"[migrate.other_upstream] the bus pulls another TiDB cluster (changefeed=full, cluster_id={CLUSTER}" in said
    assert ticdc.posted == []


def test_stopped_changefeed_is_judged_and_left(run: Run, ticdc: RecordedTicdc, bus: Bus) -> None:
    ticdc.infos["full"] = ticdc.stopped["full"]
    status, shown, _ = run("--take-over", "--tz", "UTC", "--no-confirm", "-c", "full")
    assert status == 0
    assert "it is stopped there: --take-over leaves it" in shown
    assert "nothing to take over" in shown
    assert (ticdc.posted, bus.kept) == ([], {})


@pytest.mark.parametrize(
    "masked",
    [
        "mysql://root:xxxxx@127.0.0.1:3306/",
        "kafka://h:1/t?protocol=simple&sasl-mechanism=PLAIN&sasl-user=u&sasl-password=xxxxx",
    ],
)
def test_masked_secret_is_asked_for_and_never_taken_for_one(
    run: Run, ticdc: RecordedTicdc, bus: Bus, masked: str
) -> None:
    ticdc.infos["plain"] = {**ticdc.infos["plain"], "sink_uri": masked, "config": {}}
    status, shown, _ = run("--take-over", "--tz", "UTC", "--no-confirm", "-c", "plain")
    assert status == 1
    assert "refused: [migrate.secret_masked] TiCDC shows the sink URI without its secrets" in shown
    assert (ticdc.posted, bus.kept) == ([], {})
    given = masked.replace("xxxxx", "s3cr3t")
    status, shown, said = run(
        "--take-over", "--tz", "UTC", "--no-confirm", "-c", "plain", "--sink-uri", f"plain={given}"
    )
    assert (status, "s3cr3t" in shown + said) == (0, False)
    assert bus.kept["default", "plain"].info.sink_uri == given


def test_setting_that_is_not_taken_is_refused_by_its_name_and_stands_in_the_file(
    run: Run, ticdc: RecordedTicdc, tmp_path: Path
) -> None:
    config = {**ticdc.infos["plain"]["config"], "sink": {"protocol": "maxwell"}}
    ticdc.infos["plain"] = {**ticdc.infos["plain"], "config": config, "sink_uri": "kafka://127.0.0.1:1/t"}
    status, shown, _ = run("-c", "plain", "--out", str(tmp_path))
    assert status == 1
    assert "plain: normal, kafka://127.0.0.1:1/t: refused" in shown
    assert "key=sink.protocol" in shown
    assert "# refused: " in (tmp_path / "plain.toml").read_text()
    with pytest.raises(ConfigError):
        load_changefeed("kafka://127.0.0.1:1/t", (tmp_path / "plain.toml").read_text())


@pytest.mark.parametrize("name", ["../up", "a/b", "", "a--b", 7, None])
def test_id_that_would_leave_a_path_or_folder_is_no_id(run: Run, ticdc: RecordedTicdc, name: object) -> None:
    ticdc.listed = [{**ticdc.listed[0], "id": name}]
    status, _, said = run()
    assert status == 1
    assert "[migrate.strange_answer] a changefeed's id is none" in said


@pytest.mark.parametrize("field", ["sink_uri", "checkpoint_ts", "upstream_id", "config"])
def test_answer_that_lacks_a_field_is_refused(run: Run, ticdc: RecordedTicdc, field: str) -> None:
    ticdc.infos["plain"] = {**ticdc.infos["plain"], field: None}
    status, _, said = run("-c", "plain")
    assert (status, "[migrate.strange_answer]" in said) == (1, True)


def test_changefeed_that_ticdc_does_not_have_is_a_usage_error(run: Run) -> None:
    status, _, said = run("-c", "nobody")
    assert (status, "TiCDC has no such changefeed" in said, json.dumps("nobody")[1:-1] in said) == (2, True, True)
