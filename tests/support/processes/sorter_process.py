"""A sorter as a real process, its changefeed in a real ZooKeeper, and an owner's judgement of what it reports."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from consumers.control.changefeeds.states import FeedStates
from consumers.control.changefeeds.verbs import ChangefeedControl
from consumers.control.core.changefeeds.state import Patience
from edges.zookeeper.access import ZooKeeperAccess
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import (
    ChangefeedInfo,
    ChangefeedStatus,
    ZkPaths,
    decode_changefeed_info,
    decode_changefeed_status,
    encode_changefeed_info,
    encode_changefeed_status,
)
from tests.support.control.lasting_session import lasting_session
from tests.support.control.pauses import LONGEST_S, growing_pauses

_MAIN = (
    "import json, sys, logging; from pathlib import Path; from sorters.run.job import SorterOptions, run_sorter; "
    "logging.basicConfig(level=logging.INFO); raw = json.loads(sys.argv[1]); exec(sys.argv[2]); "
    "from edges.kafka.access import KafkaAccess; from edges.registry.access import RegistryAccess; "
    "from edges.zookeeper.access import ZooKeeperAccess; "
    "raw |= {'kafka': KafkaAccess(raw['kafka']), 'zookeeper': ZooKeeperAccess(raw['zookeeper'])}; "
    "raw |= {'schema_registry': RegistryAccess.at(raw['schema_registry'] or ''), 'data_dir': Path(raw['data_dir'])}; "
    "sys.exit(run_sorter(SorterOptions(**raw)))"
)


PATIENCE = Patience(first_s=1.0)
"""A test waits no longer than it must."""


@dataclass
class Sorter:
    """One changefeed and its sorter process."""

    kafka: str
    zookeeper: str
    data_dir: Path
    changefeed_id: str
    schema_registry: str | None = None
    master: str = "local[2]"
    checkpoint_dir: str = ""
    spark_conf: tuple[tuple[str, str], ...] = ()
    process: subprocess.Popen[bytes] | None = None
    trouble: str = ""
    """Python that the process runs first, so that something happens to it at a chosen call."""
    longest_pause_s: float = LONGEST_S
    """Between two looks at what is waited for."""

    def __post_init__(self) -> None:
        self.paths = ZkPaths(self.changefeed_id)  # a cluster of its own keeps tests apart
        self.session = lasting_session(ZooKeeperAccess(self.zookeeper))
        self.client: Any = self.session.client
        self._states: FeedStates | None = None

    def create(
        self, upstream: str, sink_uri: str, *, start_ts: int, config: dict[str, Any] | None = None, **more: Any
    ) -> None:
        """Write the changefeed's nodes; those of one that there is as if it was paused, updated and resumed at once."""
        path = self.paths.changefeed_info("default", self.changefeed_id)
        there = self.client.exists(path) is not None
        info = ChangefeedInfo(
            changefeed_id=self.changefeed_id,
            upstream=UpstreamId(upstream),
            sink_uri=sink_uri,
            config=config or {},
            start_ts=Ts(start_ts),
            epoch=decode_changefeed_info(self.client.get(path)[0]).epoch + 1 if there else 0,
            **more,
        )
        self._states = FeedStates(self.session, self.paths, info.upstream, patience=PATIENCE)
        status = self.status()
        self.client.ensure_path(path.rsplit("/", 1)[0])
        transaction = self.client.transaction()
        (transaction.set_data if there else transaction.create)(path, encode_changefeed_info(info))
        if status is not None:
            resumed = replace(status, state="normal", error=None, failure=None)
            transaction.set_data(self._status_path, encode_changefeed_status(resumed))
        assert not any(isinstance(result, Exception) for result in transaction.commit())

    @property
    def _status_path(self) -> str:
        return self.paths.changefeed_status("default", self.changefeed_id)

    def renew(self, upstream: str, sink_uri: str, *, start_ts: int, **more: Any) -> None:
        """Give the process a changefeed that knows nothing of the one before, as after remove and create.

        The process goes on, or is started where none runs: a start of Spark costs more than most tests.
        """
        runs = self.process is not None and self.process.poll() is None
        if runs:
            self.create(upstream, sink_uri, start_ts=start_ts, desired_state="stopped")
            self.wait(lambda status: status.state == "stopped")
        if self.client.exists(self._status_path):
            self.client.delete(self._status_path)
        self.create(upstream, sink_uri, start_ts=start_ts, **more)
        if not runs:
            self.start()

    def resume(self) -> None:
        """Do what ``changefeed resume`` does."""
        ChangefeedControl(self.session, self.paths).resume(self.changefeed_id)

    def start(self) -> None:
        options = {
            "changefeed_id": self.changefeed_id,
            "cluster": self.changefeed_id,
            "kafka": self.kafka,
            "zookeeper": self.zookeeper,
            "schema_registry": self.schema_registry,
            "data_dir": str(self.data_dir),
            "master": self.master,
            "checkpoint_dir": self.checkpoint_dir,
            "spark_conf": self.spark_conf,
        }
        self.data_dir.mkdir(parents=True, exist_ok=True)
        with (self.data_dir / "sorter.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _MAIN, json.dumps(options), self.trouble],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """``kill -9`` of the process and what it has started (JVM, Python workers)."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(60)

    def wait_for_trouble(self, timeout_s: float = 500.0) -> None:
        """Wait until its trouble has ended the process; the next start is without."""
        assert self.process is not None
        self.process.wait(timeout_s)
        self.kill()
        self.trouble = ""

    def stop(self) -> int:
        """Ask it to stop; return its exit status."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(180)

    def close(self) -> None:
        self.kill()
        self.session.close()

    def status(self) -> ChangefeedStatus | None:
        there = self.client.exists(self._status_path)
        return decode_changefeed_status(self.client.get(self._status_path)[0]) if there else None

    def wait(self, reached: Callable[[ChangefeedStatus], bool], timeout_s: float = 240.0) -> ChangefeedStatus:
        """Wait until the status is as asked; meanwhile what the sorter says is judged as by an owner."""
        deadline, pauses = time.monotonic() + timeout_s, growing_pauses(self.longest_pause_s)
        while time.monotonic() < deadline:
            if self._states is not None:
                self._states.look()
            status = self.status()
            if status is not None and reached(status):
                return status
            assert self.process is None or self.process.poll() in (None, 0), self.log()
            time.sleep(next(pauses))
        raise AssertionError(f"status is {self.status()}\n{self.log()}")

    def wait_checkpoint(self, ts: int, timeout_s: float = 240.0) -> ChangefeedStatus:
        return self.wait(lambda status: status.checkpoint_ts >= ts, timeout_s)

    def wait_healthy(self, ts: int) -> ChangefeedStatus:
        """Wait until it is past ``ts`` and well."""
        return self.wait(lambda status: status.checkpoint_ts >= ts and status.state == "normal" and not status.error)

    def log(self) -> str:
        """Return the end of what the process has printed."""
        return (self.data_dir / "sorter.log").read_text(errors="replace")[-5000:]
