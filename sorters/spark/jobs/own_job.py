"""Runs a job of one changefeed, and again where executors with its sorted runs were lost.

Spark itself would run the lost tasks of the first step again, and then all tasks of the second that have not ended,
beside those of them that still run and write: two attempts of one task, for as long as the first takes. So a lost run
fails the job (``spark.stage.maxConsecutiveAttempts`` is 1); its tasks are killed, and then it is run anew.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

from sorters.spark.jobs.job_group import DEATH_S

log = logging.getLogger(__name__)

TRIES_MAX: Final = 4
"""As many as Spark itself gives a stage."""
_LOST = "failed the maximum allowable number of times"
"""What Spark says of a stage whose input it could not fetch."""


def run_own_job(
    run: Callable[[], list[bytes]],
    *,
    end_tasks: Callable[[], None],
    is_given_up: Callable[[], bool],
    is_gone: Callable[[], bool],
    death_s: float = DEATH_S,
) -> list[bytes]:
    """Return what ``run`` returns; where it raises, no task of it writes any more, unless the error is a task's own.

    Args:
        run: runs the job, each time anew.
        end_tasks: kills what still runs of it.
        is_given_up: tells whether the job is to end.
        is_gone: tells whether the session runs nothing any more; its tasks end with it.
        death_s: after the end of a job that was cancelled or has failed, for its tasks to be dead.

    Raises:
        Exception: what ``run`` has raised last.
    """
    for left in reversed(range(TRIES_MAX)):
        try:
            return run()
        except Exception as error:
            is_lost = _LOST in str(error)
            if is_gone() or not (is_lost or is_given_up()):
                raise
            _try(end_tasks)
            time.sleep(death_s)
            if not (is_lost and left) or is_given_up() or is_gone():
                raise
            log.warning("executors with sorted runs of a cut were lost; it is run anew", extra={"tries_left": left})
    raise AssertionError("the last try returns or raises")


def _try(end_tasks: Callable[[], None]) -> None:
    try:
        end_tasks()
    except Exception as error:  # Py4J's, of many kinds: where nobody is left, nothing runs
        log.warning("tasks of a job that has failed are not killed", extra={"reason": repr(error)})
