"""What processes that serve do not import, seen in processes of their own: here others have imported it already."""

import subprocess
import sys

import pytest


def _run(code: str) -> str:
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


@pytest.mark.parametrize("module", ["sorters.service.service", "compose.capture.life", "sorters.spark.tasks.cut_task"])
def test_a_server_does_without_pandas(module: str) -> None:
    code = f"""
import gc, sys
from compose.quick_imports import quick_imports
with quick_imports():
    import {module}
assert gc.isenabled() and gc.get_freeze_count() > 10_000
import pyarrow as pa
assert pa.array([1, 2]).sum().as_py() == 3
print("pandas" in sys.modules)
"""
    assert _run(code) == "False"


def test_data_that_only_pandas_has_types_for_is_not_missed() -> None:
    code = """
from schemas.bare_arrow import leave_out_pandas
leave_out_pandas()
import datetime, decimal
import numpy as np
import pyarrow as pa
moment = datetime.datetime(2026, 11, 24)
arrays = [
    pa.array([None, moment]), pa.array([decimal.Decimal("1.5")]), pa.array(["a", None]),
    pa.array(np.array([b"a", None], object)), pa.array(np.array(["2026-11-24"], "datetime64[us]")),
]
print([array.null_count for array in arrays], arrays[0][1].as_py() == moment)
"""
    assert _run(code) == "[1, 0, 1, 1, 0] True"


def test_where_pandas_is_there_nothing_changes() -> None:
    code = """
import sys
import pandas as pd
from schemas.bare_arrow import leave_out_pandas
before = list(sys.meta_path)
leave_out_pandas()
import pyarrow as pa
assert sys.meta_path == before
print(pa.array(pd.Series([1.0, None])).null_count)
"""
    assert _run(code) == "1"


def test_a_service_is_on_its_way_before_the_capture_has_imported_all() -> None:
    assert _run("import sys, compose.capture.process; print('compose.capture.life' in sys.modules)") == "False"


@pytest.mark.parametrize(("given", "pool"), [("", "jemalloc"), ("system", "system")])
def test_a_service_takes_arrows_memory_from_the_pool_for_many_threads_and_its_children_do_not(
    given: str, pool: str
) -> None:
    code = f"""
import os
os.environ.pop("ARROW_DEFAULT_MEMORY_POOL", None)
if {given!r}:
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = {given!r}
from compose.quick_imports import POOL_OF_MANY_THREADS, quick_imports
with quick_imports(arrow_pool=POOL_OF_MANY_THREADS):
    import sorters.service.service
import pyarrow as pa
print(pa.default_memory_pool().backend_name, os.environ.get("ARROW_DEFAULT_MEMORY_POOL", ""))
"""
    assert _run(code) == f"{pool} {given}".strip()


def test_threads_of_a_service_share_heaps() -> None:
    assert _run("from sorters.service.arenas import share_arenas; print(share_arenas(4))") == str(
        sys.platform.startswith("linux")
    )
