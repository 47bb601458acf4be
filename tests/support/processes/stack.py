"""One Kafka, ZooKeeper and schema registry for a whole test session, shared by xdist's workers; fresh names per test.

``TIDEBUS_TEST_KAFKA``, ``TIDEBUS_TEST_ZOOKEEPER`` and ``TIDEBUS_TEST_SCHEMA_REGISTRY`` name parts that run already;
what they do not name is started here. Import the fixtures in a ``conftest.py``.
"""

import fcntl
import itertools
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from compose.stack.local import Addresses, LocalStack
from compose.stack.spark_files import name_spark_files

_OTHERS_END_S = 1_500.0
"""How long the worker that started the stack waits for the others to finish; the whole suite has 20 minutes."""


def given_addresses() -> Addresses:
    """Return the parts that the environment names."""
    return Addresses(
        kafka=os.environ.get("TIDEBUS_TEST_KAFKA", ""),
        zookeeper=os.environ.get("TIDEBUS_TEST_ZOOKEEPER", ""),
        schema_registry=os.environ.get("TIDEBUS_TEST_SCHEMA_REGISTRY", ""),
    )


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    """Addresses of the session's stack: ``.kafka``, ``.zookeeper``, ``.schema_registry``.

    The first xdist worker that asks starts it and stops it when nobody has it any more: who asks after that starts
    another one. Spark sessions of the tests take their connector from where `make setup` has put it.
    """
    name_spark_files()
    if os.environ.get("PYTEST_XDIST_WORKER") is None:
        with LocalStack(data=tmp_path_factory.mktemp("stack"), given=given_addresses()) as local:
            yield local.addresses
        return
    shared = tmp_path_factory.getbasetemp().parent
    local_stack: LocalStack | None = None
    with _users(shared) as users:
        if "addresses" not in users:
            started = users.get("started", 0) + 1
            local_stack = LocalStack(data=shared / f"stack-{started}", given=given_addresses())
            local_stack.start()
            users.update(addresses=asdict(local_stack.addresses), count=0, started=started)
        users["count"] += 1
        addresses = Addresses(**users["addresses"])
    try:
        yield addresses
    finally:
        with _users(shared) as users:
            users["count"] -= 1
        if local_stack is not None:
            _wait_for_others(shared)
            local_stack.stop()


@pytest.fixture(scope="session")
def fresh_name() -> Callable[[str], str]:
    """Return names that no other test and no earlier session has used: ``fresh_name("orders")``."""
    session, numbers = uuid.uuid4().hex[:8], itertools.count(1)
    return lambda stem: f"{stem}-{session}-{next(numbers)}"


@contextmanager
def _users(folder: Path) -> Iterator[dict]:  # type: ignore[type-arg]
    """Lock, read, let the caller change, and write the file that the workers share."""
    with (folder / "stack.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = folder / "stack.json"
        users = json.loads(path.read_text()) if path.exists() else {}
        yield users
        path.write_text(json.dumps(users))


def _wait_for_others(folder: Path) -> None:
    deadline = time.monotonic() + _OTHERS_END_S
    while True:
        with _users(folder) as users:
            if users["count"] <= 0 or time.monotonic() > deadline:
                del users["addresses"]
                return
        time.sleep(0.5)
