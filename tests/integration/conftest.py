"""Integration tests share one stack of real parts; AWS is played."""

import pytest

from tests.support.processes.stack import fresh_name, stack
from tests.support.storages.aws import aws

__all__ = ["aws", "fresh_name", "stack"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is collected below this folder."""
    for item in items:
        if "tests/integration/" in item.path.as_posix():
            item.add_marker(pytest.mark.integration)
