"""How many examples a property is tried with that costs seconds: a few in each run, many more in `make nightly`."""

import os

NIGHTLY_TIMES = 20


def examples(count: int) -> int:
    """Return ``count``; with ``NIGHTLY_EXAMPLES`` twenty times as many."""
    return count * NIGHTLY_TIMES if os.environ.get("NIGHTLY_EXAMPLES") else count
