"""A sorter as a real process, its changefeed in a real ZooKeeper."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from schemas.changefeed import (
    ChangefeedInfo,
    ChangefeedStatus,
    ZkPaths,
    decode_changefeed_status,
    encode_changefeed_info,
)
from schemas.ids import Ts, UpstreamId

_MAIN = (
    "import json, sys, logging; from pathlib import Path; from sorters.job import SorterOptions, run_sorter; "
    "logging.basicConfig(level=logging.INFO); raw = json.loads(sys.argv[1]); "
    "sys.exit(run_sorter(SorterOptions(**{**raw, 'data_dir': Path(raw['data_dir'])})))"
)


@dataclass
class Sorter:
    """One changefeed and its sorter process."""

    kafka: str
    zookeeper: str
    data_dir: Path
    changefeed_id: str
    schema_registry: str | None = None
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.paths = ZkPaths(self.changefeed_id)  # a cluster of its own keeps tests apart
        self.client = KazooClient(self.zookeeper)
        self.client.start()

    def create(
        self, upstream: str, sink_uri: str, *, start_ts: int, config: dict[str, Any] | None = None, **more: Any
    ) -> None:
        """Write the changefeed's node, or write it anew."""
        info = ChangefeedInfo(
            changefeed_id=self.changefeed_id,
            upstream=UpstreamId(upstream),
            sink_uri=sink_uri,
            config=config or {},
            start_ts=Ts(start_ts),
            **more,
        )
        path = self.paths.changefeed_info("default", self.changefeed_id)
        self.client.ensure_path(path)
        self.client.set(path, encode_changefeed_info(info))

    def renew(self, upstream: str, sink_uri: str, *, start_ts: int, **more: Any) -> None:
        """Give the process a changefeed that knows nothing of the one before, as after remove and create.

        The process goes on, or is started where none runs: a start of Spark costs more than most tests.
        """
        if self.process is not None and self.process.poll() is None:
            self.create(upstream, sink_uri, start_ts=start_ts, desired_state="stopped")
            self.wait(lambda status: status.state == "stopped")
        path = self.paths.changefeed_status("default", self.changefeed_id)
        if self.client.exists(path):
            self.client.delete(path)
        self.create(upstream, sink_uri, start_ts=start_ts, **more)
        if self.process is None or self.process.poll() is not None:
            self.start()

    def touch(self) -> None:
        """Write the changefeed's node as it is, which is what ``changefeed resume`` does."""
        path = self.paths.changefeed_info("default", self.changefeed_id)
        self.client.set(path, self.client.get(path)[0])

    def start(self) -> None:
        options = {
            "changefeed_id": self.changefeed_id,
            "cluster": self.changefeed_id,
            "kafka": self.kafka,
            "zookeeper": self.zookeeper,
            "schema_registry": self.schema_registry,
            "data_dir": str(self.data_dir),
        }
        self.data_dir.mkdir(parents=True, exist_ok=True)
        with (self.data_dir / "sorter.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _MAIN, json.dumps(options)], stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """``kill -9`` of the process and what it has started (JVM, Python workers)."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(20)

    def stop(self) -> int:
        """Ask it to stop; return its exit status."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(60)

    def close(self) -> None:
        self.kill()
        self.client.stop()
        self.client.close()

    def status(self) -> ChangefeedStatus | None:
        path = self.paths.changefeed_status("default", self.changefeed_id)
        return decode_changefeed_status(self.client.get(path)[0]) if self.client.exists(path) else None

    def wait(self, reached: Callable[[ChangefeedStatus], bool], timeout_s: float = 120.0) -> ChangefeedStatus:
        """Wait until the status is as asked."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            status = self.status()
            if status is not None and reached(status):
                return status
            assert self.process is None or self.process.poll() is None, self.log()
            time.sleep(0.1)
        raise AssertionError(f"status is {self.status()}\n{self.log()}")

    def wait_checkpoint(self, ts: int, timeout_s: float = 120.0) -> ChangefeedStatus:
        return self.wait(lambda status: status.checkpoint_ts >= ts, timeout_s)

    def log(self) -> str:
        """Return the end of what the process has printed."""
        return (self.data_dir / "sorter.log").read_text(errors="replace")[-5000:]
