"""The session of a process that was killed is ended by the one that comes next with its folder, and by nobody else."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compose.stack.local import Addresses
from edges.zookeeper import session_file
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.session import SESSION_TIMEOUT_S, Session
from edges.zookeeper.session_file import SessionFile

PROCESS = """
import sys, time
from pathlib import Path
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.session import Session
from edges.zookeeper.session_file import SessionFile
servers, file, node = sys.argv[1:]
access = ZooKeeperAccess(servers)
with SessionFile(Path(file)) as sessions, Session(access) as session:
    sessions.note(access, session.client)
    session.client.create(node, b"", ephemeral=True, makepath=True)
    print("there", flush=True)
    time.sleep(600)
"""


class World:
    """A process with a session and a node, and somebody who looks."""

    def __init__(self, servers: str, folder: Path, node: str) -> None:
        self.access, self.file, self.node = ZooKeeperAccess(servers), folder / "capture.session", node
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROCESS, servers, str(self.file), node], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == "there"
        self.looks = Session(self.access)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def stands(self) -> bool:
        self.looks.client.sync(self.node)
        return self.looks.client.exists(self.node) is not None

    def close(self) -> None:
        self.looks.close()
        self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def world(stack: Addresses, tmp_path: Path, fresh_name: Callable[[str], str]) -> Iterator[World]:
    world = World(stack.zookeeper, tmp_path / "data", f"/{fresh_name('cluster')}/node")
    yield world
    world.close()


def test_session_of_a_killed_process_is_ended_by_the_next_one_with_its_folder(world: World) -> None:
    world.kill()
    killed_at = time.monotonic()
    with SessionFile(world.file) as sessions:
        stood = world.stands
        assert sessions.end_former(world.access, SESSION_TIMEOUT_S) == stood
        if time.monotonic() - killed_at < SESSION_TIMEOUT_S / 2:
            assert stood, "ZooKeeper would have kept it"
        assert not world.stands
        assert not sessions.end_former(world.access, SESSION_TIMEOUT_S), "it is ended once"


def test_session_of_a_process_that_lives_stays(world: World) -> None:
    with SessionFile(world.file) as sessions:
        assert not sessions.end_former(world.access, SESSION_TIMEOUT_S)
        sessions.forget()
    assert world.stands
    assert json.loads(world.file.read_text())["servers"] == world.access.servers


@pytest.mark.parametrize("how", ["another boot", "another ensemble", "damaged", "no password"])
def test_session_that_is_not_surely_the_dead_ones_stays(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    noted = json.loads(world.file.read_text())
    copy = tmp_path / "copy"
    text = {
        "another boot": json.dumps({**noted, "boot": "b"}),
        "another ensemble": json.dumps({**noted, "servers": "127.0.0.1:1"}),
        "damaged": json.dumps(noted)[:-5],
        "no password": json.dumps({**noted, "password": "00"}),
    }[how]
    copy.write_text(text)
    with SessionFile(copy) as sessions:
        assert not sessions.end_former(world.access, SESSION_TIMEOUT_S)
    assert world.stands
    copy.write_text(json.dumps(noted))
    monkeypatch.setattr(session_file, "_BOOT_ID", tmp_path / "none")
    with SessionFile(copy) as sessions:
        assert not sessions.end_former(world.access, SESSION_TIMEOUT_S)
    assert world.stands


def test_session_file_of_a_process_that_left_in_order_names_none(stack: Addresses, tmp_path: Path) -> None:
    access = ZooKeeperAccess(stack.zookeeper)
    with SessionFile(tmp_path / "file") as sessions, Session(access) as session:
        sessions.note(access, session.client)
        assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
        sessions.forget()
    with SessionFile(tmp_path / "file") as sessions:
        assert not sessions.end_former(access, SESSION_TIMEOUT_S)
