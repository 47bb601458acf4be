"""An upstream for benches of the whole bus: the embedded cluster with a generator, in a process that takes orders.

A line of standard input is an order, each is answered by a line: ``write RATE TABLES`` begins to write rows into the
schema ``gen`` until ``stop``; ``add ROWS TABLES`` writes so many at full speed into the schema ``late``, and answers
when they are committed; ``make ROWS TABLES`` makes tables in the schema ``old`` that have so many rows together for who
scans them (:mod:`tests.bench.rig.made_rows`). A process of its own, so that the bus's figures are the bus's. Its first
line is PD's address; it ends when its standard input does.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from compose.collector import OF_UPSTREAM, spare_old_objects
from producers.region_server.generator import Generator, GeneratorOptions
from producers.region_server.server import RegionServer, RegionServerOptions
from tests.bench.rig.made_rows import POOL_ROWS, MadeScans
from tests.bench.rig.module_process import module_process

SCHEMA, LATE_SCHEMA, OLD_SCHEMA = "gen", "late", "old"
RESOLVED_MS = 200
"""TiKV's ``cdc.min-ts-interval`` in TiCDC's own benchmarks."""
WRITE_TIMEOUT_S = 600.0
_AT_ONCE: Mapping[str, Any] = {"rows_per_s": 0, "txn_rows": 50, "rollback_share": 0.0}
_ONLY_INSERTS: Mapping[str, Any] = {"update_share": 0.0, "delete_share": 0.0}


class Upstream:
    """The process, as the bench sees it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.pid = process.pid
        self.pd = self._read()

    def write(self, rows_per_s: float, tables: int) -> None:
        """Begin to write so many rows a second."""
        self._order(f"write {rows_per_s} {tables}")

    def stop(self) -> None:
        """Return when nothing is written any more."""
        self._order("stop")

    def add(self, rows: int, tables: int) -> None:
        """Write rows at full speed, in a schema of their own; return when they are committed."""
        self._order(f"add {rows} {tables}")

    def make(self, rows: int, tables: int) -> None:
        """Make tables, in a schema of their own, that have so many rows together for who scans them."""
        self._order(f"make {rows} {tables}")

    def _order(self, order: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{order}\n")
        self._process.stdin.flush()
        self._read()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the upstream has ended")
        return line.strip()


@contextmanager
def upstream() -> Iterator[Upstream]:
    """Yield an upstream that writes nothing yet."""
    with module_process(["tests.bench.rig.upstream"]) as process:
        yield Upstream(process)


def serve() -> None:
    """Take orders until standard input ends."""
    spare_old_objects(OF_UPSTREAM)
    made = MadeScans()
    with RegionServer(RegionServerOptions(min_ts_interval_ms=RESOLVED_MS)) as server:
        print(server.pd_address, flush=True)
        writing: tuple[Generator, Future[None]] | None = None
        for line in sys.stdin:
            order, *numbers = line.split()
            if order == "stop":
                assert writing is not None
                writing[0].stop()
                writing[1].result(WRITE_TIMEOUT_S)
            elif order == "write":
                options = GeneratorOptions(schema=SCHEMA, rows_per_s=float(numbers[0]), tables=int(numbers[1]))
                generator = Generator(server, options)
                writing = generator, server.spawn(generator.run())
            elif order == "add":
                rows, tables = map(int, numbers)
                _write(server, GeneratorOptions(schema=LATE_SCHEMA, rows_max=rows, tables=tables, **_AT_ONCE))
            else:
                rows, tables = map(int, numbers)
                likes = GeneratorOptions(
                    schema=OLD_SCHEMA, rows_max=POOL_ROWS * tables, tables=tables, **_ONLY_INSERTS, **_AT_ONCE
                )
                made.add(server, _write(server, likes).table_ids, rows // tables)
            print("done", flush=True)


def _write(server: RegionServer, options: GeneratorOptions) -> Generator:
    generator = Generator(server, options)
    server.spawn(generator.run()).result(WRITE_TIMEOUT_S)
    return generator


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    serve()
