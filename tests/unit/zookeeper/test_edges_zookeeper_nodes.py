"""Nodes are written by one writer: whatever stands there, or on the condition of what stands there."""

from collections.abc import Callable
from typing import Any

import pytest
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from edges.zookeeper.nodes import put_node, replace_node


class Answer:
    def __init__(self, ask: Callable[[], Any]) -> None:
        self._ask = ask

    def get(self, timeout: float | None) -> Any:
        return self._ask()


class Stat:
    def __init__(self, version: int) -> None:
        self.version = version


class Scripted:
    """A client whose requests end as scripted, in order; ``asked`` keeps what was asked for."""

    def __init__(self, *ends: object) -> None:
        self._ends = list(ends)
        self.asked: list[str] = []

    def _end(self, kind: str) -> Answer:
        def ask() -> Any:
            self.asked.append(kind)
            end = self._ends.pop(0)
            if isinstance(end, Exception):
                raise end
            return end

        return Answer(ask)

    def set_async(self, path: str, value: bytes, version: int = -1) -> Answer:
        return self._end(f"set {version}")

    def create_async(self, path: str, value: bytes, **folders: bool) -> Answer:
        return self._end(f"create {folders or ''}".strip())


@pytest.mark.parametrize(
    ("ends", "with_folders", "asked"),
    [
        ([Stat(4)], False, ["set -1"]),
        ([NoNodeError(), "/a/b"], False, ["set -1", "create"]),
        ([NoNodeError(), "/a/b"], True, ["set -1", "create {'makepath': True}"]),
        # Another creates it between the two: the last word is ours all the same.
        ([NoNodeError(), NodeExistsError(), Stat(1)], False, ["set -1", "create", "set -1"]),
    ],
)
def test_node_is_set_or_created_whoever_comes_in_between(
    ends: list[object], with_folders: bool, asked: list[str]
) -> None:
    client: Any = Scripted(*ends)
    put_node(client, "/a/b", b"x", with_folders=with_folders)
    assert client.asked == asked


def test_node_of_what_was_removed_is_not_created() -> None:
    client: Any = Scripted(NoNodeError(), NoNodeError())
    with pytest.raises(NoNodeError):
        put_node(client, "/a/b", b"x")


@pytest.mark.parametrize(
    ("version", "end", "after"),
    [
        (None, "/a/b", 0),
        (None, NodeExistsError(), None),
        (None, NoNodeError(), None),
        (3, Stat(4), 4),
        (3, BadVersionError(), None),
        (3, NoNodeError(), None),
    ],
)
def test_node_is_replaced_only_on_the_condition_of_what_stands_there(
    version: int | None, end: object, after: int | None
) -> None:
    client: Any = Scripted(end)
    assert replace_node(client, "/a/b", b"x", version) == after
    assert client.asked == ["create" if version is None else f"set {version}"]
