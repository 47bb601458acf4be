"""Sorter services as real processes, with an owner's assignments written by hand."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kazoo.exceptions import NoNodeError

from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.progress import all_entries
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import (
    ChangefeedInfo,
    ChangefeedStatus,
    ZkPaths,
    decode_changefeed_status,
    encode_changefeed_info,
)
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import (
    Assigned,
    Assignment,
    FeedEntry,
    ServiceInfo,
    decode_service,
    encode_assignment,
    newest_entries,
    with_progress,
)
from tests.support.control.lasting_session import lasting_session
from tests.support.control.pauses import growing_pauses


@dataclass
class ServiceCluster:
    """One cluster in ZooKeeper: changefeeds, and services that they are assigned to."""

    kafka: str
    zookeeper: str
    cluster: str
    folder: Path
    """For the services' files, a folder each."""
    schema_registry: str = ""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    revision: int = 0

    def __post_init__(self) -> None:
        self.paths = ZkPaths(self.cluster)
        self.services = ServicePaths(self.paths)
        self.session = lasting_session(ZooKeeperAccess(self.zookeeper))
        self.client: Any = self.session.client
        self.client.ensure_path(self.services.assignments)

    def create(self, name: str, upstream: str, sink_uri: str, *, start_ts: int, **more: Any) -> None:
        """Create a changefeed, or write another text of it."""
        info = ChangefeedInfo(
            changefeed_id=name, upstream=UpstreamId(upstream), sink_uri=sink_uri, start_ts=Ts(start_ts), **more
        )
        path = self.paths.changefeed_info("default", name)
        if self.client.exists(path):
            self.client.set(path, encode_changefeed_info(info))
        else:
            self.client.create(path, encode_changefeed_info(info), makepath=True)

    def assigned(self, name: str, epoch: int = 0) -> Assigned:
        """Return a changefeed as an assignment names it, under a new revision."""
        self.revision += 1
        stat = self.client.exists(self.paths.changefeed_info("default", name))
        return Assigned(
            namespace="default", changefeed_id=name, created_zxid=stat.czxid, epoch=epoch, revision=self.revision
        )

    def assign(self, assignments: dict[str, list[Assigned]]) -> None:
        """Write what each service has, at once."""
        transaction = self.client.transaction()
        for service, feeds in assignments.items():
            path, node = self.services.assignment(service), encode_assignment(Assignment(feeds=tuple(feeds)))
            if self.client.exists(path):
                transaction.set_data(path, node)
            else:
                transaction.create(path, node)
        assert not any(isinstance(result, Exception) for result in transaction.commit())

    def start(self, service: str, *more: str, trouble: str = "", launcher: Sequence[str] = ()) -> None:
        """Start a service; ``trouble`` is Python that its process runs first, ``launcher`` what else runs it."""
        folder = self.folder / service
        folder.mkdir(parents=True, exist_ok=True)
        begin = f"{trouble}\nimport sys; from compose.cli import main; sys.exit(main())"
        command = [*launcher] if launcher else [sys.executable, "-c", begin, "sorters"]
        command += ["--service-id", service, "--cluster", self.cluster]
        command += ["--kafka", self.kafka, "--zookeeper", self.zookeeper, "--data-dir", str(folder)]
        command += ["--schema-registry", self.schema_registry] if self.schema_registry else []
        with (folder / "service.log").open("ab") as log:
            self.processes[service] = subprocess.Popen(
                [*command, *more], stdout=log, stderr=log, start_new_session=True
            )

    def kill(self, service: str) -> None:
        """``kill -9`` of the process and what it has started."""
        process = self.processes.pop(service)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)

    def stop(self, service: str) -> int:
        """Ask it to stop; return its exit status."""
        process = self.processes.pop(service)
        process.terminate()
        return process.wait(180)

    def close(self) -> None:
        for service in list(self.processes):
            self.kill(service)
        self.session.close()

    def registered(self, service: str) -> ServiceInfo | None:
        """Return what a living service says of itself."""
        path = self.services.service(service)
        try:
            return decode_service(self.client.get(path)[0])
        except NoNodeError:
            return None

    def entries(self) -> list[FeedEntry]:
        """Return what all services say."""
        return all_entries(self.client, self.paths)

    def own_status(self, name: str) -> ChangefeedStatus | None:
        """Return what the changefeed's own node says."""
        try:
            return decode_changefeed_status(self.client.get(self.paths.changefeed_status("default", name))[0])
        except NoNodeError:
            return None

    def status(self, name: str) -> ChangefeedStatus | None:
        """Return how far it is, by whoever says most."""
        return with_progress(self.own_status(name), self.newest().get(name))

    def newest(self) -> dict[str, FeedEntry]:
        """Return what was said last of each changefeed: who has given one away may still be listed with it."""
        return {entry[0][1]: newest for entry, newest in newest_entries(self.entries()).items()}

    def wait(self, reached: Callable[[], bool], what: str, timeout_s: float = 240.0) -> None:
        """Wait until something is so."""
        deadline, pauses = time.monotonic() + timeout_s, growing_pauses()
        while not reached():
            assert time.monotonic() < deadline, f"{what}\n{self.logs()}"
            for service, process in self.processes.items():
                assert process.poll() is None, f"{service} has ended with {process.poll()}\n{self.logs()}"
            time.sleep(next(pauses))

    def wait_checkpoints(self, names: list[str], ts: int, timeout_s: float = 240.0) -> None:
        """Wait until changefeeds have all up to a ts."""

        def done() -> bool:
            newest = self.newest()
            statuses = [with_progress(self.own_status(name), newest.get(name)) for name in names]
            return all(status is not None and status.checkpoint_ts >= ts for status in statuses)

        self.wait(done, f"checkpoints are not at {ts}", timeout_s)

    def logs(self) -> str:
        """Return the ends of what the services have printed."""
        return "\n".join(
            f"--- {log.parent.name}\n{log.read_text(errors='replace')[-4000:]}"
            for log in sorted(self.folder.glob("*/service.log"))
        )
