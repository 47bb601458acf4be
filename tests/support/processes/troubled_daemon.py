"""Our daemon of Spark's Python workers, with trouble planted: cuts of a changefeed hang in C code, with the interpreter
held, whose sink topic has the word in its name.
"""

import ctypes

from sorters.spark.tasks import cut_task
from sorters.spark.worker import python_daemon

HANGS = "hang-in-a-task"
_run_task = cut_task.run_task


def troubled(task: cut_task.CutTask) -> bytes:
    """Run a cut, or hang."""
    if any(HANGS in topic for topic in task.extras.column("topic").to_pylist()):
        ctypes.PyDLL(None).sleep(600)
    return _run_task(task)


if __name__ == "__main__":
    cut_task.run_task = troubled
    python_daemon.main()
