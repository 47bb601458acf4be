"""What this machine has and lacks for TideBus, one line each."""

import contextlib
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from compose.ports import free_ports
from compose.stack.checksums import check_part
from compose.stack.errors import JarChecksumError, MachineError
from compose.stack.jars import PARTS, cache_dir, missing_parts, part_dir
from compose.stack.java import find_java, java_major
from edges.kafka.access import KafkaAccess
from edges.kafka.topic_state import seen_topics
from producers.errors import TlsFileError
from producers.pull.pd.client import PdClient
from producers.tls import Channels, TlsSettings
from schemas.errors import BusError
from schemas.ids import UpstreamId, physical_ms
from schemas.proto.metapb_pb2 import Store
from schemas.rawlog.topic_settings import complaints
from schemas.rawlog.topics import raw_topics

PYTHON_MIN, PYTHON_MAX = (3, 11), (3, 13)
"""The newest that the pinned pyspark and pandas have wheels for."""
MEMORY_MIN_GIB = 6.0
"""Measured for `tidebus run`: Kafka, ZooKeeper, the registry and two sorters together hold about 5 GiB."""
DISK_MIN_GIB = 5.0
"""Jars and the environment are 2 GiB; the rest is the topics of a run."""
PORTS_NEEDED = 5
UPSTREAM_DEADLINE_S = 5.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    name: str
    ok: bool
    said: str
    """What was seen and, where it is not enough, what to do."""
    needed: bool = True
    """False: TideBus helps itself, or works without."""


def examine(data_dir: Path) -> Iterator[Finding]:
    """Yield what was found, in the order in which a newcomer would mend it."""
    yield _python()
    yield _java()
    yield _jars()
    ports = free_ports(PORTS_NEEDED)
    yield Finding("ports", len(ports) == PORTS_NEEDED, f"{len(ports)} of {PORTS_NEEDED} free ones found on loopback")
    yield _memory()
    yield _disk(data_dir)
    yield Finding("cores", (os.cpu_count() or 1) >= 2, f"{os.cpu_count()}; fewer than 2 make it slow", needed=False)


def _jars() -> Finding:
    missing = missing_parts()
    try:
        for part in PARTS:
            if part not in missing:
                check_part(part_dir(part))
    except JarChecksumError as error:
        return Finding("jars", False, str(error))
    said = f"missing: {', '.join(missing)}; `tidebus setup` fetches them" if missing else f"in {cache_dir() / 'jars'}"
    return Finding("jars", not missing, said, needed=False)


def _python() -> Finding:
    version = sys.version_info[:2]
    said = f"{sys.version.split()[0]} at {sys.executable}"
    if not PYTHON_MIN <= version <= PYTHON_MAX:
        said += f"; {'.'.join(map(str, PYTHON_MIN))} to {'.'.join(map(str, PYTHON_MAX))} is needed"
    return Finding("python", PYTHON_MIN <= version <= PYTHON_MAX, said)


def _java() -> Finding:
    try:
        java = find_java()
    except MachineError as error:
        return Finding("java", False, error.message)
    return Finding("java", True, f"{java_major(java)} at {java}")


def _memory() -> Finding:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    gib = pages * size / 2**30
    return Finding("memory", gib >= MEMORY_MIN_GIB, f"{gib:.1f} GiB; `tidebus run` wants {MEMORY_MIN_GIB:.0f}")


def _disk(data_dir: Path) -> Finding:
    folder = data_dir.resolve()
    while not folder.exists():
        folder = folder.parent
    gib = shutil.disk_usage(folder).free / 2**30
    return Finding("disk", gib >= DISK_MIN_GIB, f"{gib:.1f} GiB free at {folder}; {DISK_MIN_GIB:.0f} are wanted")


def examine_upstream(pd: str, tls: TlsSettings) -> Iterator[Finding]:
    """Yield whether PD and every TiKV store can be reached and trusted."""
    try:
        channels = Channels(tls)
    except BusError as error:
        yield Finding("tls", False, str(error))
        return
    said = f"CA {tls.ca_path}, certificate {tls.cert_path or 'none'}" if tls.enabled else "off"
    yield Finding("tls", True, said)
    try:
        with contextlib.closing(PdClient(pd, channels=channels, deadline_s=UPSTREAM_DEADLINE_S)) as client:
            yield Finding("pd", True, f"cluster {client.cluster_id}, its time is {physical_ms(client.now())} ms")
            for store in client.stores():
                yield _store(store, channels)
    except BusError as error:
        yield Finding("pd", False, str(error))


def examine_raw_log(kafka: KafkaAccess, upstream: UpstreamId) -> Iterator[Finding]:
    """Yield how an upstream's raw topics are set."""
    topics = raw_topics(upstream)
    try:
        seen = seen_topics(kafka.config(), (topics.region_events, topics.ddl, topics.frontier, topics.images))
    except BusError as error:
        yield Finding("raw log", False, str(error))
        return
    if not seen:
        yield Finding("raw log", True, f"no topics of upstream {upstream} yet; the first capture makes them")
        return
    faults = complaints(topics, seen)
    for complaint in faults:
        yield Finding("raw log", False, str(complaint), needed=complaint.loses)
    if not faults:
        yield Finding("raw log", True, f"{len(seen)} topics keep what they are given")


def _store(store: Store, channels: Channels) -> Finding:
    name = f"store {store.id}"
    if any(label.key == "engine" and label.value == "tiflash" for label in store.labels):
        return Finding(name, True, f"{store.address} is TiFlash, which is not needed")
    host, _, port = store.address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), UPSTREAM_DEADLINE_S):
            refusal = channels.probe(store.address)
    except (OSError, ValueError, TlsFileError) as error:
        return Finding(name, False, f"{store.address} is not reached: {error}")
    return Finding(name, refusal is None, str(refusal) if refusal else f"{store.address}, version {store.version}")
