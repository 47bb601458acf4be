"""How a process begins that Spark starts for this source: its planners, and its daemons of tasks.

Spark puts pyspark as a zip file without compiled code before all else on the path of every Python that it starts. So
each compiles pyspark anew, 0.65 s of CPU before it may do a thing, and Spark gives the process of a streaming query
ten seconds to say that it is there: on a busy machine queries ended with "Python worker failed to connect back". Where
the same pyspark is installed with its compiled code, that is taken. And a daemon imports what tasks need before it
forks the first one, so that no worker has to.

A process of this source begins with us because :func:`hooked` puts a folder with a ``sitecustomize``
on the ``PYTHONPATH`` of what Spark starts for this source, and for nothing else. Where the folder is not (an executor
that has our code in another place) all is as Spark does it.
"""

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Final

from schemas.bare_arrow import leave_out_pandas
from sorters.source.python_worker import keep_unchanged_zips

HOOK: Final = Path(__file__).with_name("python_hook")
"""The folder that holds ``sitecustomize.py``."""
_HOOK_PARTS: Final = HOOK.parts[-3:]
_PATH, _DAEMON, _MODULES = "PYTHONPATH", "pyspark.daemon", "sorters.source.data_source"


@contextlib.contextmanager
def hooked(environment: MutableMapping[str, str]) -> Iterator[None]:
    """Let an environment of Spark's workers name the hook meanwhile: what is registered then keeps it for itself."""
    before = environment.get(_PATH)
    environment[_PATH] = str(HOOK) if before is None else os.pathsep.join([before, str(HOOK)])
    try:
        yield
    finally:
        if before is None:
            del environment[_PATH]
        else:
            environment[_PATH] = before


def begin() -> None:
    """Make this process ready; called before pyspark is imported, by the hook alone."""
    sys.path[:] = installed_path(sys.path)
    _run_the_machines_own()
    # Nobody's code but ours runs here: Spark starts processes by their environment, and nobody else has this one.
    leave_out_pandas()
    keep_unchanged_zips()
    if _DAEMON in sys.orig_argv:
        with contextlib.redirect_stdout(sys.stderr):  # the daemon's first word there is its port
            importlib.import_module(_MODULES)
        gc.collect()
        gc.freeze()


def installed_path(path: Sequence[str]) -> list[str]:
    """Return a path without the hook, and without Spark's zip files of packages that stand on it unpacked, too: of the
    very installation of pyspark that a zip file lies in, and of py4j in the same version.
    """
    return [entry for entry in path if not (_is_hook(Path(entry)) or _is_installed(Path(entry), path))]


def _is_hook(folder: Path) -> bool:
    """Tell whether a folder is a hook: ours, or that of a copy of our code, as executors may have one beside it."""
    return folder.parts[-len(_HOOK_PARTS) :] == _HOOK_PARTS


def _is_installed(file: Path, path: Sequence[str]) -> bool:
    """Tell whether what a zip file of Spark's holds stands on a path unpacked."""
    if file.parts[-4:-1] != ("pyspark", "python", "lib"):
        return False
    if file.name == "pyspark.zip":
        home = file.parents[2].resolve()
        return (home / "__init__.py").exists() and any((Path(each) / "pyspark").resolve() == home for each in path)
    version = file.name.removesuffix("-src.zip")
    return version.startswith("py4j-") and any((Path(each) / f"{version}.dist-info").exists() for each in path)


def _run_the_machines_own() -> None:
    """Run the ``sitecustomize`` that Python would have run without ours."""
    ours = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours
