"""pyarrow without pandas, for processes that make no data frames.

With the first array that it makes, pyarrow imports pandas where that is installed, only to know a data frame when it
is given one: 0.23 s of CPU and 36 MB a process. Where it cannot, it does without.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

_PANDAS: Final = "pandas"


class _NoPandas(MetaPathFinder):
    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Say that there is no pandas; leave all else to others."""
        if fullname == _PANDAS:
            raise ModuleNotFoundError("this process does without pandas", name=fullname)
        return None


def leave_out_pandas() -> None:
    """Let nobody in this process import pandas from now on; where it was imported, nothing changes.

    For processes of our own alone: who runs in a user's program cannot say what that needs.
    """
    if _PANDAS not in sys.modules:
        sys.meta_path.insert(0, _NoPandas())
