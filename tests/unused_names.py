"""Names of the product that nothing of the product uses, found by vulture: `python -m tests.unused_names`.

Tests do not count as users: what only they use goes, or stands in ``ALLOWED`` with the reason. An entry that allows
nothing any more fails as well.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from vulture import Vulture

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = ("tidebus", "schemas", "edges", "producers", "sorters", "consumers", "compose")
REGISTERED: Final = [f"@*.{verb}" for verb in ("command", "get", "post", "put", "delete")]
"""Decorators that hand a function to click or FastAPI, which call it."""
CONFIDENCE_MIN: Final = 60
"""Per cent; below it vulture guesses."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """Names that may look unused, as patterns of the shell."""

    reason: str
    files: str
    names: tuple[str, ...]

    def covers(self, file: str, name: str) -> bool:
        """Tell whether this entry is about the name."""
        return fnmatchcase(file, self.files) and any(fnmatchcase(name, pattern) for pattern in self.names)


ALLOWED: Final = (
    Allowed("keys of TiCDC's file, read by the classes' fields (schemas/config/parse/section.py)",
            "schemas/config/*.py", ("*",)),
    Allowed("gRPC calls them by their names in TiKV's and PD's services",
            "producers/region_server/*/*.py", ("[A-Z]*[a-z]*",)),
    Allowed("click calls them, and hands over what cdc cli takes and we need not", "compose/cli/*.py",
            ("convert", "format_commands", "verbose")),
    Allowed("rich reads them", "compose/*.py", ("no_wrap", "overflow")),
    Allowed("the console's page shows them, by JSON", "consumers/control/console/core/history.py",
            ("rows_since", "spark_rows_since")),
    Allowed("pydantic reads it", "consumers/control/api/requests.py", ("model_config",)),
    Allowed("clients send it, and it says nothing here", "consumers/control/api/routes/v1.py", ("timezone",)),
    Allowed("uvicorn reads it", "consumers/control/api/serving/server.py", ("should_exit",)),
    Allowed("kazoo calls it", "edges/zookeeper/session.py", ("async_result",)),
    Allowed("kazoo's parameters", "edges/zookeeper/client.py", ("listener", "makepath", "recursive")),
    Allowed("PyMySQL calls it", "consumers/processors/apply/tls.py", ("_create_ssl_ctx",)),
    Allowed("tarfile reads it", "compose/stack/jars.py", ("extraction_filter",)),
    Allowed("decimal reads it", "schemas/tidb/origin_default.py", ("prec",)),
    Allowed("an Executor's parameter", "compose/simulation/processors/calls.py", ("cancel_futures",)),
    Allowed("Arrow's parameter", "sorters/core/records/order.py", ("max_chunksize",)),
    Allowed("values of an enum, chosen by a URI's text", "sorters/core/encode/wire/compressed.py", ("LZ4", "SNAPPY")),
    Allowed("users of the client library call it", "consumers/client/changes.py", ("transactions",)),
    Allowed("users of the client library call it", "consumers/client/materialised.py", ("tidb_sql",)),
    Allowed("the embedded upstream, which tests and benches drive",
            "producers/region_server/*.py",
            ("act", "commit_primary", "commit_secondaries", "remove_store", "*_pd_member")),
    Allowed("the local stack, which tests and benches drive",
            "compose/*.py", ("LocalMariaDb", "restart_part", "zk_paths")),
    Allowed("importlib and pickle call them, in pyspark's own place",
            "sorters/spark/worker/*.py", ("importer", "invalidate_caches", "load_stream", "dump_stream")),
    Allowed("Spark calls them by its own names", "sorters/source/data_source.py", ("latestOffset", "streamReader")),
    Allowed("tests and benches make readers of their own by it", "sorters/cut/record_window.py", ("maker",)),
    Allowed("what laws and benches ask a machine about its inside",
            "*.py",
            ("counting", "lock_count", "open_prewrites", "raw_rows", "region_errors", "stale_events",
             "modified_zxid", "pids", "requests_total", "stranger_events", "timestamp_ms", "unlocked")),
)  # fmt: skip


def unused(packages: Sequence[Path]) -> list[tuple[str, int, str]]:
    """Return file, line and name of what nothing in ``packages`` uses."""
    finder = Vulture(ignore_decorators=REGISTERED)
    finder.scavenge([str(package) for package in packages], exclude=["*_pb2*"])
    return [
        (str(Path(item.filename).relative_to(ROOT)), int(item.first_lineno), str(item.name))
        for item in finder.get_unused_code(min_confidence=CONFIDENCE_MIN)
    ]


def complaints(names: Sequence[tuple[str, int, str]]) -> list[str]:
    """Return a line for each name that no entry allows, and for each entry that allows nothing."""
    covered = {at: [entry for entry in ALLOWED if entry.covers(at[0], at[2])] for at in names}
    useful = {entry for entries in covered.values() for entry in entries}
    return [
        *(
            f"{file}:{line}: {name} is used by nothing"
            for (file, line, name), entries in covered.items()
            if not entries
        ),
        *(
            f"tests/unused_names.py: nothing is left to allow: {entry.reason}"
            for entry in ALLOWED
            if entry not in useful
        ),
    ]


if __name__ == "__main__":
    lines = complaints(unused([ROOT / package for package in PACKAGES]))
    print("\n".join(lines), end="\n" if lines else "")
    sys.exit(bool(lines))
