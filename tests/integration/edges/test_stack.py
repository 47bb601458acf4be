"""The local stack on real processes: it answers, it keeps its data, and it leaves nobody behind."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from kazoo.client import KazooClient

from compose.stack.children import Nursery
from compose.stack.errors import ChildError
from compose.stack.local import Addresses

WAIT_S = 180.0


def test_stack_started_every_part_does_its_work(stack: Addresses, fresh_name: Callable[[str], str]) -> None:
    topic = fresh_name("stack")
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(WAIT_S)
    producer = Producer({"bootstrap.servers": stack.kafka, "acks": "all", "enable.idempotence": True})
    producer.produce(topic, b"value", b"key")
    assert producer.flush(WAIT_S) == 0
    consumer = Consumer({"bootstrap.servers": stack.kafka, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message, deadline = None, time.monotonic() + WAIT_S
    while (message is None or message.error() is not None) and time.monotonic() < deadline:
        message = consumer.poll(5.0)
    consumer.close()
    assert message is not None and message.value() == b"value"

    zookeeper = KazooClient(stack.zookeeper)
    zookeeper.start(WAIT_S)
    zookeeper.create(f"/{topic}", b"node", ephemeral=True)
    assert zookeeper.get(f"/{topic}")[0] == b"node"
    zookeeper.stop()

    schema = Schema('{"type":"record","name":"r","fields":[{"name":"id","type":"int"}]}', "AVRO")
    with SchemaRegistryClient({"url": stack.schema_registry}) as registry:
        schema_id = registry.register_schema(f"{topic}-value", schema)
        assert registry.get_latest_version(f"{topic}-value").schema_id == schema_id


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_children_when_parent_is_killed_end_too(tmp_path: Path, how: signal.Signals) -> None:
    program = textwrap.dedent(f"""
        import time
        from pathlib import Path
        from compose.stack.children import Nursery
        nursery = Nursery()
        child = nursery.start("sleeper", ["sh", "-c", "sleep 600 & sleep 600"], log=Path({str(tmp_path)!r}) / "log")
        print(child.pid, flush=True)
        time.sleep(600)
    """)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        group = int(parent.stdout.readline())
        assert _group(group)
        os.kill(parent.pid, how)
    deadline = time.monotonic() + WAIT_S
    while _group(group) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert _group(group) == []


def test_child_that_ends_while_starting_is_named_with_its_last_words(tmp_path: Path) -> None:
    with Nursery() as nursery:
        child = nursery.start("broken part", ["sh", "-c", "echo no memory left; exit 3"], log=tmp_path / "log")
        with pytest.raises(ChildError, match=r"broken part ended while starting .*status=3.*no memory left"):
            child.wait_ready(lambda: False, WAIT_S)


def test_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    with Nursery() as nursery:
        child = nursery.start(
            "deaf", ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done"], log=tmp_path / "log"
        )
        child.wait_ready(lambda: "up" in child.tail(), WAIT_S)
        child.stop(grace_s=0.5)
        assert child.exit_status() == -signal.SIGKILL


def _group(group: int) -> list[int]:
    alive = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process.pid)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return alive
