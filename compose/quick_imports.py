"""How a process that serves imports what it needs (docs/decisions/2026-11-24-quicker-starts.md)."""

import contextlib
import gc
import importlib
import os
from collections.abc import Iterator
from typing import Final

ARROW_POOL_ENV: Final = "ARROW_DEFAULT_MEMORY_POOL"
POOL_OF_MANY_THREADS: Final = "jemalloc"
"""Arrow's own choice, mimalloc, keeps what each thread has had: a hundred that use 22 MB in all had 890 MB, and twice
the CPU (docs/decisions/2026-11-24-memory-of-many-threads.md)."""


@contextlib.contextmanager
def quick_imports(*, arrow_pool: str = "") -> Iterator[None]:
    """Import a server's modules while inside: without pandas, and without looks for garbage, for imports leave none.

    What is there afterwards stays for good, so Python's collector never looks at it again.

    Args:
        arrow_pool: whose memory Arrow takes in this process, unless the environment says so, and not in its children;
            '': Arrow's own choice. Where Arrow has no such pool it says so, and goes by its own choice.
    """
    from schemas.bare_arrow import leave_out_pandas

    leave_out_pandas()
    gc.disable()
    try:
        if arrow_pool and ARROW_POOL_ENV not in os.environ:
            os.environ[ARROW_POOL_ENV] = arrow_pool  # read as Arrow is loaded, and never again
            try:
                importlib.import_module("pyarrow")
            finally:
                del os.environ[ARROW_POOL_ENV]
        yield
    finally:
        gc.freeze()
        gc.enable()
