"""How a process that serves imports what it needs (docs/decisions/2026-11-24-quicker-starts.md)."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Import a server's modules while inside: without pandas, and without looks for garbage, for imports leave none.

    What is there afterwards stays for good, so Python's collector never looks at it again.
    """
    from schemas.bare_arrow import leave_out_pandas

    leave_out_pandas()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
