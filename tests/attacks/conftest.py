"""Attacks on a running bus share one stack of real parts; those on pure code need none."""

import pytest

from tests.support.processes.stack import fresh_name, stack

__all__ = ["fresh_name", "stack"]

_REAL_PARTS = frozenset({"stack", "mariadb"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder that start other processes."""
    for item in items:
        if "tests/attacks/" in item.path.as_posix() and _REAL_PARTS & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.integration)
