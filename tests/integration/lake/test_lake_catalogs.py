"""Lake tables in other catalogs than files, and on S3: at each tag they are the upstream, also after a kill -9."""

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sorters.spark.connector import SPARK_JARS_ENV
from sorters.spark.session import event_log_settings
from tests.integration.lake.test_lake_sink import (
    DIES,
    assert_each_tag_is_the_upstream,
    assert_every_change_is_there_once,
    bank,
    nightly,
    patient,
    sorter,
)
from tests.support.lakes.catalog_door import TOKEN_PATH, TokenServer, catalog_door
from tests.support.lakes.lake import Lake
from tests.support.lakes.lake_bank import LakeBank
from tests.support.lakes.lake_catalogs import S3_KEY, S3_SECRET, JdbcLake, S3Lake, catalog_jars, rest_server
from tests.support.processes.bus import wait_until
from tests.support.processes.sorter_process import Sorter
from tests.support.rawlog.raw_log import START_TS
from tests.support.storages.aws import ask_s3, aws

__all__ = ["aws", "bank", "sorter"]

OAUTH_CLIENT, OAUTH_SECRET = "bus", "word-of-the-client"


@pytest.fixture
def catalog(
    request: pytest.FixtureRequest, aws: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Lake, str]]:
    """Yield how its tables are read, and what the sink URI says."""
    folder = tmp_path / "lake"
    if request.param == "hadoop":
        yield Lake(folder), f"warehouse=file://{folder}"
        return
    if request.param == "rest":
        with rest_server(folder) as lake:
            yield lake, f"catalog=rest&catalog-uri={lake.address}"
        return
    jars = catalog_jars("drivers") + (catalog_jars("s3") if request.param.endswith("s3") else [])
    monkeypatch.setenv(SPARK_JARS_ENV, ",".join([os.environ[SPARK_JARS_ENV], *map(str, jars)]))
    keys = f"s3-endpoint={aws}&s3-access-key={S3_KEY}&s3-secret-access-key={S3_SECRET}"
    if request.param.endswith("s3"):
        ask_s3(aws, "lake", "PUT")
    if request.param == "rest-s3":
        with rest_server(folder, aws) as lake, catalog_door(lake.address) as door:
            door.tokens = TokenServer(OAUTH_CLIENT, OAUTH_SECRET, lasting_s=20)
            oauth2 = f"catalog-user={OAUTH_CLIENT}&catalog-password={OAUTH_SECRET}&catalog-scope=tables"
            server = f"catalog-oauth2-server-uri={door.address}{TOKEN_PATH}"
            yield lake, f"catalog=rest&catalog-uri={door.address}&{keys}&{oauth2}&{server}"
        assert door.asked and not door.refused
        assert door.tokens.asked[0] == {
            "grant_type": "client_credentials",
            "client_id": OAUTH_CLIENT,
            "client_secret": OAUTH_SECRET,
            "scope": "tables",
        }
        return
    if request.param == "s3":
        said = f"catalog=jdbc&catalog-uri=jdbc:sqlite:{folder}.db&warehouse=s3://lake/tables&{keys}"
        yield S3Lake(folder, aws), said
        return
    yield JdbcLake(folder), f"catalog=jdbc&catalog-uri=jdbc:sqlite:{folder}.db&warehouse=file://{folder}"


@nightly
@patient
@pytest.mark.parametrize(
    ("catalog", "mode"),
    [("jdbc", "upsert"), ("rest", "upsert"), ("s3", "upsert"), ("rest-s3", "upsert"), ("rest-s3", "append")],
    indirect=["catalog"],
)
def test_lake_tables_of_a_catalog_are_the_upstream_at_each_tag_also_after_a_kill(
    bank: LakeBank, sorter: Sorter, catalog: tuple[Lake, str], tmp_path: Path, mode: str
) -> None:
    lake, said = catalog
    layout = "partitioning=truncate(5,id)&compaction-interval=1s"
    uri = f"iceberg://?{said}&mode={mode}&commit-interval=1s&{layout}"
    jobs = tmp_path / "jobs"
    sorter.spark_conf = (*event_log_settings(str(jobs)).items(), ("spark.eventLog.compress", "false"))
    sorter.create(bank.log.upstream, uri, start_ts=START_TS)
    # A REST catalog moves tables by a transaction, and none is published by itself.
    method = "staged_move" if "catalog=rest" in said else "publish"
    sorter.trouble = DIES.format(method=method, calls=3, before=True)
    bank.open()
    sorter.start()
    sorter.wait_checkpoint(bank.advance(), 500)
    bank.transfer(40)
    bank.advance()
    sorter.wait_for_trouble()
    sorter.start()
    for _ in range(3):
        bank.transfer(20)
        sorter.wait_checkpoint(bank.advance(), 500)
    assert sorter.stop() == 0
    assert lake.tags("bank", "debit") == lake.tags("bank", "credit")
    if mode == "append":
        assert_every_change_is_there_once(lake, bank)
    else:
        assert_each_tag_is_the_upstream(lake, bank)
        assert "replace" in lake.operations("bank", "credit"), "it was compacted"
    assert lake.partition_fields("bank", "credit") == ["truncate[5]"]
    noted = "".join(file.read_text() for file in jobs.rglob("*") if file.is_file())
    assert "spark.sql.catalog.lake" in noted
    for secret in (S3_SECRET, OAUTH_SECRET):
        assert secret not in noted + (sorter.data_dir / "sorter.log").read_text(errors="replace")


@nightly
@patient
@pytest.mark.parametrize("catalog", ["jdbc"], indirect=True)
def test_lake_run_that_ends_leaves_no_connection_to_its_catalog(
    bank: LakeBank, sorter: Sorter, catalog: tuple[Lake, str]
) -> None:
    lake, said = catalog
    database, uri = f"{lake.folder}.db", f"iceberg://?{said}&mode=upsert&commit-interval=1s&compaction-interval=0"
    sorter.create(bank.log.upstream, uri, start_ts=START_TS)
    bank.open()
    sorter.start()
    sorter.wait_checkpoint(bank.advance(), 500)
    assert _opens(sorter, database)
    sorter.create(bank.log.upstream, uri, start_ts=START_TS, desired_state="stopped")
    sorter.wait(lambda status: status.state == "stopped")
    wait_until(lambda: not _opens(sorter, database), 60, "the catalog's connections are closed")


def _opens(sorter: Sorter, file: str) -> bool:
    """Tell whether the sorter or its JVM, which live on, hold a file open."""
    assert sorter.process is not None
    living = psutil.Process(sorter.process.pid)
    return any(
        opened.path == file for each in [living, *living.children(recursive=True)] for opened in each.open_files()
    )
