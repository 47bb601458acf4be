"""What many unit tests read, and none changes, is made once."""

from collections.abc import Iterator
from functools import cache

import pytest

from compose.foresight import dry_run, explain
from compose.foresight.recorded import read_recorded_log


@pytest.fixture(scope="session", autouse=True)
def _recording_is_folded_once() -> Iterator[None]:
    """Let dry runs and explanations share a recording's log: folding it takes two seconds of CPU."""
    folded = cache(read_recorded_log)
    with pytest.MonkeyPatch.context() as patch:
        for module in (dry_run, explain):
            patch.setattr(module, "read_recorded_log", folded)
        yield
