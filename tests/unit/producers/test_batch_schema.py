"""A registry that is away, refuses or has forgotten, and the captures that land all the same."""

import threading
import time
from collections.abc import Callable

import pytest

from edges.registry.access import RegistryAccess
from edges.zookeeper.session import ZooKeeperError
from producers.errors import RegistryError, RegistryRefusedError
from producers.pull.landing import batch_schema
from producers.pull.landing.batch_schema import UNREGISTERED, BatchSchema

REGISTRY = RegistryAccess.at("http://h:1")
AWAY, REFUSED = RegistryError("away"), RegistryRefusedError("refused")


class Memory:
    """Remembers in this process."""

    def __init__(self, schema_id: int | None = None) -> None:
        self.schema_id = schema_id

    def read(self) -> int | None:
        return self.schema_id

    def write(self, schema_id: int) -> None:
        self.schema_id = schema_id


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int | RegistryError]]:
    def give(*given: int | RegistryError) -> list[int | RegistryError]:
        left = list(given)

        def register(_registry: RegistryAccess, _topic: str, _timeout_s: float) -> int:
            answer = left.pop(0)
            if isinstance(answer, RegistryError):
                raise answer
            return answer

        monkeypatch.setattr(batch_schema, "register_region_batch", register)
        monkeypatch.setattr(batch_schema, "AGAIN_FIRST_S", 0.001)
        return left

    return give


def later_id(schema: BatchSchema) -> int:
    """Start it, and return the id that it brings."""
    taken, brought = threading.Event(), list[int]()

    def take(schema_id: int) -> None:
        brought.append(schema_id)
        taken.set()

    schema.start(take)
    assert taken.wait(20)
    return brought[0]


def test_registry_that_answers_is_asked_once(answers: Callable[..., list[int | RegistryError]]) -> None:
    left, memory = answers(7), Memory()
    schema = BatchSchema(REGISTRY, "t", memory)
    schema.start(lambda _: None)
    assert (schema.schema_id, memory.schema_id, left) == (7, 7, [])


def test_registry_that_is_away_stops_no_start_and_tells_the_id_later(
    answers: Callable[..., list[int | RegistryError]],
) -> None:
    answers(AWAY, AWAY, REFUSED, 7)
    memory = Memory()
    schema = BatchSchema(REGISTRY, "t", memory)
    assert schema.schema_id == UNREGISTERED
    assert later_id(schema) == 7
    assert memory.schema_id == 7


def test_remembered_id_is_taken_without_asking_and_asked_for_later(
    answers: Callable[..., list[int | RegistryError]],
) -> None:
    answers(AWAY, 8)
    memory = Memory(7)
    schema = BatchSchema(REGISTRY, "t", memory)
    assert schema.schema_id == 7
    assert later_id(schema) == 8, "the registry has lost its schemas, and gives another id"
    assert memory.schema_id == 8


def test_memory_that_cannot_be_reached_ends_no_start(answers: Callable[..., list[int | RegistryError]]) -> None:
    class Unreachable(Memory):
        is_away = True

        def read(self) -> int | None:
            if self.is_away:
                raise ZooKeeperError("request failed")
            return super().read()

        def write(self, schema_id: int) -> None:
            if self.is_away:
                self.is_away = False
                raise ZooKeeperError("request failed")
            super().write(schema_id)

    left, memory = answers(7, 7), Unreachable()
    schema = BatchSchema(REGISTRY, "t", memory)
    assert schema.schema_id == 7
    schema.start(lambda _: None)
    deadline = time.monotonic() + 20
    while memory.schema_id != 7 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert memory.schema_id == 7, "what could not be remembered is remembered later"
    assert left == []


def test_registry_that_refuses_stops_a_start_only_while_no_id_is_known(
    answers: Callable[..., list[int | RegistryError]],
) -> None:
    left = answers(REFUSED)
    with pytest.raises(RegistryRefusedError):
        BatchSchema(REGISTRY, "t", Memory())
    assert left == []
    answers(REFUSED)
    assert BatchSchema(REGISTRY, "t", Memory(7)).schema_id == 7
