"""A JVM of the local stack starts from the archive of classes that another one has left."""

from pathlib import Path

import pytest

from compose.ports import free_ports
from compose.stack.archive_setup import use_zookeeper
from compose.stack.children import Nursery
from compose.stack.class_archives import archive_flags, make_archive
from compose.stack.parts import READY_S, start_zookeeper, zookeeper_class_path, zookeeper_ready

SHARED = "source: shared objects file (top)"
"""What the JVM says of a class that it takes from an archive beside its own."""


def test_classes_come_from_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEBUS_CACHE", str(tmp_path / "cache"))
    jars = zookeeper_class_path()
    make_archive("zookeeper", jars, use_zookeeper, print)
    flags = archive_flags("zookeeper", jars)
    assert flags
    loaded = tmp_path / "loaded"
    (port,) = free_ports(1)
    with Nursery() as nursery:
        options = [*flags, f"-Xlog:class+load:file={loaded}"]
        part = start_zookeeper(nursery, tmp_path / "zookeeper", port, archive_options=options)
        part.wait_ready(lambda: zookeeper_ready(port), READY_S)
    ours = [line for line in loaded.read_text().splitlines() if "org.apache.zookeeper" in line]
    assert len(ours) > 100
    assert sum(SHARED in line for line in ours) > 0.9 * len(ours)
