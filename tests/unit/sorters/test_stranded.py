"""When a session that has lost its executors is given up."""

from sorters.core.service.stranded import Stranded


def seen(looks: list[tuple[int, int, float]]) -> list[float]:
    stranded = Stranded(stranded_s=30.0)
    return [now_s for executors, jobs, now_s in looks if stranded.sees(executors, jobs, now_s)]


def test_session_whose_jobs_wait_with_no_executor_left_is_given_up_in_time() -> None:
    assert seen([(2, 1, 0.0), (0, 1, 10.0), (0, 2, 39.9), (0, 1, 40.0)]) == [40.0]


def test_session_that_gets_executors_again_or_has_no_job_or_never_had_any_is_kept() -> None:
    assert seen([(2, 1, 0.0), (0, 1, 10.0), (1, 1, 39.0), (0, 1, 41.0), (0, 1, 70.9)]) == []
    assert seen([(2, 1, 0.0), (0, 1, 10.0), (0, 0, 39.0), (0, 1, 41.0), (0, 1, 70.9)]) == []
    assert seen([(0, 3, 0.0), (0, 3, 1000.0)]) == []
