"""End-to-end tests start the whole bus, each module its own: they kill its parts."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is collected below this folder."""
    for item in items:
        if "tests/e2e/" in item.path.as_posix():
            item.add_marker(pytest.mark.e2e)
