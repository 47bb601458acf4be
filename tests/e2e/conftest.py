"""End-to-end tests start the whole bus, each module its own: they kill its parts."""

import pytest

TIMEOUT_S = 1_800
"""Of a test that asks for no other: each of its waits may take minutes on a busy machine, and says itself what was
waited for in vain.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is collected below this folder."""
    for item in items:
        if "tests/e2e/" in item.path.as_posix():
            item.add_marker(pytest.mark.e2e)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIMEOUT_S))
