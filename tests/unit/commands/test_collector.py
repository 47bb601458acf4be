"""How often servers look at all their objects, in processes of their own: the thresholds are the whole process's."""

import subprocess
import sys

import pytest

CODE = """
import gc, sys
from compose.collector import OF_CAPTURE, OF_SORTERS, spare_old_objects
looks = []
gc.callbacks.append(lambda phase, info: phase == "start" and looks.append(info["generation"]))
thresholds = {"capture": OF_CAPTURE, "sorters": OF_SORTERS}.get(sys.argv[1])
if thresholds:
    spare_old_objects(thresholds)
held = [[] for _ in range(300_000)]
for _ in range(2 * 60_000):
    cycle = []
    cycle.append(cycle)
print(looks.count(2), looks.count(0) > 0)
"""


def _looks(server: str) -> tuple[int, bool]:
    ran = subprocess.run([sys.executable, "-c", CODE, server], capture_output=True, text=True, timeout=120, check=True)
    of_all, of_young = ran.stdout.split()
    return int(of_all), of_young == "True"


def test_python_by_itself_looks_at_all_objects_as_they_grow() -> None:
    assert _looks("python")[0] > 0


@pytest.mark.parametrize("server", ["capture", "sorters"])
def test_servers_look_at_young_objects_alone(server: str) -> None:
    assert _looks(server) == (0, True)
