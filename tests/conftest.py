"""What holds for all tests."""

import gc
import logging
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

# A busy machine must not fail a property: time is no promise of these tests.
settings.register_profile("tidebus", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tidebus")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let Python's collector rest while tests are imported, and never look again at what stays to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """Take away what a command that ran in this process has told the root logger: its stream ends with the test."""
    root = logging.getLogger()
    before = list(root.handlers)
    yield
    for handler in list(root.handlers):
        if type(handler) is logging.StreamHandler and handler not in before:
            root.removeHandler(handler)
