"""A raw record that a disk has damaged, and an operator's way past it, as docs/operations.md says, by commands alone.

The changefeed is paused while its rows land; then a bit of a row's text is flipped in Kafka's own file, within a batch
that still decompresses. A resume stops at the record and names it; named in ``filter.skip-damaged-records`` it is
passed over, its rows are missing, and a resync of the table brings them. The other one is a batch whose damage ends the
process that decompresses it.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from consumers.client import ChangeStream
from consumers.client.materialised import MaterialisedTable
from producers.region_server.generator import Generator, GeneratorOptions
from schemas.ids import TableId, UpstreamId
from tests.support.processes.bus import sorter_pid, status, wait_checkpoint
from tests.support.processes.cluster import Cluster, cluster
from tests.support.topics.imaged_topics import wait_whole
from tests.support.upstream.upstream_rows import upstream_at

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.skipif("NIGHTLY_IMAGES" not in os.environ, reason="a minute; NIGHTLY_IMAGES=1, make nightly"),
]
FEED, SCHEMA, TABLE = "base", "gen", "sbtest1_1"
CATCH_UP_S = 300.0
NEEDLE_BYTES = 10
"""Of a row's text: digits enough that no other row has them."""
LZ4_FRAME, BLOCK_SIZE_AT = bytes.fromhex("04224d18"), 8
Row = tuple[Any, ...]


@dataclass
class Damaged:
    """A bus with one changefeed, one table that only grows, and a reader of its topic."""

    cluster: Cluster
    table_id: TableId
    folder: Path
    stream: ChangeStream
    table: MaterialisedTable

    def ask(self, *words: str) -> str:
        """Run a command as an operator does; return what it prints."""
        server = f"http://{self.cluster.addresses['capture']}"
        command = [sys.executable, "-m", "compose.cli", *words, "-c", FEED, "--server", server]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=CATCH_UP_S, check=False)
        assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-3000:]
        return ran.stdout

    def config(self, name: str, text: str) -> tuple[str, str]:
        path = self.folder / f"{name}.toml"
        path.write_text(text)
        return "--config", str(path)

    def wait_paused(self) -> None:
        self.cluster.wait(lambda: self._status()[0] == "stopped", "the changefeed is paused", CATCH_UP_S)

    def stops_before(self, ts: int) -> bool:
        """Wait until the changefeed has failed, or has passed ``ts``; tell whether it has failed."""
        seen: list[tuple[str, int]] = []

        def is_known() -> bool:
            seen.append(self._status())
            return seen[-1][0] == "failed" or seen[-1][1] >= ts

        self.cluster.wait(is_known, "the changefeed stops or goes on", CATCH_UP_S)
        return seen[-1][0] == "failed"

    def _status(self) -> tuple[str, int]:
        now = status(self.cluster.bus, FEED)
        return ("", 0) if now is None else (now.state, now.checkpoint_ts)

    def source_at(self, ts: int) -> Mapping[int, Row]:
        names = {self.table_id: TABLE}
        return self.cluster.server.act(lambda store: upstream_at(store, names, ts))[TABLE]

    def read_to(self, ts: int, *, through_an_image: bool = False) -> tuple[Mapping[int, Row], Mapping[int, Row]]:
        """Return what the topic's reader and the source hold at the first watermark at or above ``ts``, and after it
        has seen an image under way.
        """
        seen_partial, at_ts = False, 0

        def is_read() -> bool:
            nonlocal seen_partial, at_ts
            batch = self.stream.poll(0.5)
            if batch is None:
                return False
            self.table.apply(batch)
            seen_partial |= batch.watermark_ts >= ts and not self.table.is_whole
            at_ts = batch.watermark_ts
            return at_ts >= ts and self.table.is_whole and (seen_partial or not through_an_image)

        self.cluster.wait(is_read, "the topic is read", CATCH_UP_S)
        held = {row["id"]: (row["k"], row["c"], row["pad"]) for row in self.table.rows.values()}
        return held, self.source_at(at_ts)


def raw_files(folder: Path) -> list[Path]:
    """Return the files that a broker keeps the raw rows in."""
    return [path for path in folder.rglob("*.log") if "region-events-" in path.parent.name]


def flip(folder: Path, rows: Mapping[int, Row]) -> int:
    """Flip a bit in one row's text, in the file that a broker keeps the raw log in; return the row's key."""
    files = [(path, path.read_bytes()) for path in raw_files(folder)]
    assert files
    for key, row in rows.items():
        text = str(row[1]).encode()
        for start in range(len(text) - NEEDLE_BYTES):
            needle = text[start : start + NEEDLE_BYTES]
            homes = [(path, content.index(needle)) for path, content in files if content.count(needle) == 1]
            if len(homes) == 1:
                path, at = homes[0]
                with path.open("r+b") as file:
                    file.seek(at + NEEDLE_BYTES // 2)
                    digit = file.read(1)[0]
                    file.seek(-1, os.SEEK_CUR)
                    file.write(bytes([digit ^ 1]))
                return key
    raise AssertionError("no row's text stands in the raw log's files as it is")


def break_heads(folder: Path, ends: Mapping[Path, int]) -> None:
    """Flip a bit in the first lz4 frame behind each file's former end, of its block's size: Kafka's client does not
    survive it.
    """
    broken = 0
    for path in raw_files(folder):
        with path.open("r+b") as file:
            at = file.read().find(LZ4_FRAME, ends.get(path, 0))
            if at >= 0:
                file.seek(at + BLOCK_SIZE_AT)
                size = file.read(1)[0]
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([size ^ 0x10]))
                broken += 1
    assert broken


@contextlib.contextmanager
def one_table(folder: Path) -> Iterator[tuple[Damaged, Generator]]:
    """Yield a bus with one table that grows, and what writes it."""
    with cluster(folder / "bus", UpstreamId("damaged"), names=("capture",)) as running:
        options = GeneratorOptions(schema=SCHEMA, tables=1, rows_per_s=30, update_share=0, delete_share=0, seed=11)
        generator = Generator(running.server, options)
        writing = running.server.spawn(generator.run())
        running.wait(lambda: generator.rows_committed > 100, "rows are written")
        with ChangeStream(running.bus.addresses.kafka, [f"^{FEED}_{SCHEMA}_.*"], group="damaged") as stream:
            yield (
                Damaged(running, generator.table_ids[0], folder, stream, MaterialisedTable(SCHEMA, TABLE)),
                generator,
            )
        generator.stop()
        writing.result(60)


@dataclass(frozen=True)
class Unread:
    """Rows that have landed and that no changefeed has read."""

    landed_ts: int
    rows: Mapping[int, Row]
    ends: Mapping[Path, int]
    """Of the raw log's files, before they landed."""


def land_unread(of: Damaged, generator: Generator, run_cuts: str = "auto") -> Unread:
    """Create the changefeed, pause it once it has the table, and let rows land."""
    bus, server = of.cluster.bus, of.cluster.server
    dispatch = f'[[sink.dispatchers]]\nmatcher = ["*.*"]\ntopic = "{FEED}_{{schema}}_{{table}}"\n'
    sorter = f'[sorter]\nrun-cuts = "{run_cuts}"\n'
    config = of.config("create", f'initial = "snapshot"\n[filter]\nrules = ["{SCHEMA}.*"]\n{dispatch}{sorter}')
    kafka = bus.addresses.kafka
    uri = f"kafka://{kafka}/{FEED}_ddl?protocol=canal-json&enable-tidb-extension=true&partition-num=2"
    of.ask("changefeed", "create", "--no-confirm", "--sink-uri", uri, *config)
    wait_whole(bus, FEED, CATCH_UP_S)
    held, source = of.read_to(server.tso())
    assert held == source

    service = sorter_pid(bus, FEED)
    assert service is not None
    of.ask("changefeed", "pause")
    of.wait_paused()
    os.killpg(service, signal.SIGKILL)  # its consumer would fetch ahead what is to be damaged
    ends = {path: path.stat().st_size for path in raw_files(of.folder / "bus")}
    before, rows = of.source_at(server.tso()), generator.rows_committed
    of.cluster.wait(lambda: generator.rows_committed > rows + 100, "rows land that nobody reads yet")
    landed_ts = server.tso()
    of.cluster.wait_moving("they are published")
    fresh = {key: row for key, row in of.source_at(landed_ts).items() if key not in before}
    return Unread(landed_ts, fresh, ends)


def test_operator_passes_a_damaged_raw_record_and_a_resync_brings_its_rows(tmp_path: Path) -> None:
    with one_table(tmp_path) as (of, generator):
        unread = land_unread(of, generator)
        _pass_and_resync(of, unread.landed_ts, unread.rows, flip(tmp_path / "bus", unread.rows))


@pytest.mark.parametrize("run_cuts", ["driver", "spark"])
def test_batch_that_kafkas_client_does_not_survive_is_named_after_an_abort(tmp_path: Path, run_cuts: str) -> None:
    with one_table(tmp_path) as (of, generator):
        unread = land_unread(of, generator, run_cuts)
        break_heads(tmp_path / "bus", unread.ends)
        of.ask("changefeed", "resume")
        assert of.stops_before(unread.landed_ts)
        error = json.loads(of.ask("changefeed", "query", "-s"))["error"]
        assert error["code"] == "bus.corrupt_data"
        assert re.search(r"a batch of records is damaged.*region-events.*partition=\d+, offset=\d+", error["message"])


def _pass_and_resync(of: Damaged, landed_ts: int, fresh: Mapping[int, Row], lost: int) -> None:
    bus, server = of.cluster.bus, of.cluster.server
    places: list[str] = []
    of.ask("changefeed", "resume")
    while of.stops_before(landed_ts):  # its text may be what other records of the batch were compressed by
        error = json.loads(of.ask("changefeed", "query", "-s"))["error"]
        assert error["code"] == "rawlog.record_damaged"
        assert f"{SCHEMA}.{TABLE}" in error["message"]
        where = dict(re.findall(r"(partition|offset)=(\d+)", error["message"]))
        places.append(f"{where['partition']}:{where['offset']}")
        assert len(set(places)) == len(places), "one that is named is passed over"
        if len(places) == 1:
            of.ask("changefeed", "resume")
            assert of.stops_before(landed_ts), "no resume passes it"
        skip = of.config("skip", f"[filter]\nskip-damaged-records = {places}\n")
        of.ask("changefeed", "update", "--no-confirm", *skip)
        of.ask("changefeed", "resume")
    assert places
    held, source = of.read_to(landed_ts)
    missing = source.keys() - held.keys()
    assert lost in missing
    assert missing <= fresh.keys()
    assert all(held[key] == source[key] for key in held)

    asked_ts = server.tso()
    of.ask("table", "resync", "--table", f"{SCHEMA}.{TABLE}")
    held, source = of.read_to(asked_ts, through_an_image=True)
    assert held == source
    wait_checkpoint(bus, FEED, server.tso(), CATCH_UP_S)
