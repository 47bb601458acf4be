"""A service that ends lets stacks of a crash go to standard error again, and ends as it would where there is none."""

import subprocess
import sys
from pathlib import Path

import pytest

from schemas.running_feeds import crash_file

ENDS = """
import faulthandler, sys
from pathlib import Path
from types import SimpleNamespace
from sorters.service import service

class Done:
    def __init__(self, options): pass
    def stop(self): pass
    def run(self):
        {stderr}
        return 7

service.SorterService = Done
status = service.run_service(SimpleNamespace(data_dir=Path(sys.argv[1]), service="s"))
print(status, faulthandler.is_enabled())
"""


@pytest.mark.parametrize(
    ("stderr", "watched"), [("pass", True), ("sys.stderr = None", False), ("sys.stderr.close()", False)]
)
def test_service_ends_with_its_own_status_whatever_became_of_standard_error(
    tmp_path: Path, stderr: str, watched: bool
) -> None:
    crash_file(tmp_path, "s").parent.mkdir(parents=True, exist_ok=True)
    code = ENDS.format(stderr=stderr)
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ran.returncode, ran.stdout.split()) == (0, ["7", str(watched)]), ran.stderr
