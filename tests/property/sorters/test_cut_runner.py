"""Who runs a cut: what forces goes before what is cheap, and the cost decides one way as a cut grows."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from sorters.core.cut.runner import Choice, Costs, CutSize, Reason, Runner, choose_runner, is_cluster

BOUND = Costs().driver_bytes_max
SIZES = st.builds(CutSize, raw_bytes=st.integers(0, 4 * BOUND), rows=st.integers(0, 10_000_000))
SMALL = st.builds(CutSize, raw_bytes=st.integers(0, BOUND), rows=st.integers(0, 10_000_000))
OPTIONS = st.none() | st.sampled_from(Runner)
TASKS = st.integers(1, 64)
COSTS = st.builds(
    Costs,
    job_s=st.floats(0, 1),
    job_cpu_s=st.floats(0, 1),
    further_task_cpu_s=st.floats(0, 0.1),
    row_cpu_s=st.floats(1e-7, 1e-3),
    cpu_ratio_max=st.floats(1, 3),
)


@given(size=SIZES, on_cluster=st.booleans(), tasks=TASKS, backlog=st.booleans(), feed=OPTIONS, service=OPTIONS)
def test_option_when_given_decides_and_the_changefeeds_goes_before_the_services(
    size: CutSize, on_cluster: bool, tasks: int, backlog: bool, feed: Runner | None, service: Runner | None
) -> None:
    assume(feed is not None or service is not None)
    choice = choose_runner(
        size, on_cluster=on_cluster, tasks=tasks, backlog=backlog, by_changefeed=feed, by_service=service
    )
    asked = feed if feed is not None else service
    if asked is Runner.DRIVER and size.raw_bytes > BOUND:
        assert choice == Choice(runner=Runner.SPARK, reason=Reason.BEYOND_DRIVER_MEMORY)
    else:
        reason = Reason.FORCED_BY_SERVICE if feed is None else Reason.FORCED_BY_CHANGEFEED
        assert (choice.runner, choice.reason) == (asked, reason)


@given(size=SIZES, tasks=TASKS, backlog=st.booleans(), costs=COSTS)
def test_cut_on_a_cluster_when_nobody_asks_otherwise_is_run_by_executors(
    size: CutSize, tasks: int, backlog: bool, costs: Costs
) -> None:
    choice = choose_runner(size, on_cluster=True, tasks=tasks, backlog=backlog, costs=costs)
    assert choice == Choice(runner=Runner.SPARK, reason=Reason.CLUSTER_MASTER)


@given(size=SIZES, tasks=TASKS, costs=COSTS)
def test_cut_of_a_backlog_on_one_machine_is_run_by_spark(size: CutSize, tasks: int, costs: Costs) -> None:
    choice = choose_runner(size, on_cluster=False, tasks=tasks, backlog=True, costs=costs)
    assert choice == Choice(runner=Runner.SPARK, reason=Reason.BACKLOG)


@given(size=SIZES, feed=OPTIONS, service=OPTIONS, tasks=TASKS, costs=COSTS, backlog=st.booleans(), on=st.booleans())
def test_driver_never_gets_a_cut_that_it_cannot_hold(
    size: CutSize,
    feed: Runner | None,
    service: Runner | None,
    tasks: int,
    costs: Costs,
    backlog: bool,
    on: bool,
) -> None:
    choice = choose_runner(
        size, on_cluster=on, tasks=tasks, backlog=backlog, by_changefeed=feed, by_service=service, costs=costs
    )
    assert choice.runner is Runner.SPARK or size.raw_bytes <= costs.driver_bytes_max


@given(size=SMALL, more=st.integers(0, 10_000_000), tasks=TASKS, costs=COSTS)
def test_cut_that_is_worth_a_job_stays_so_with_more_rows(size: CutSize, more: int, tasks: int, costs: Costs) -> None:
    larger = CutSize(raw_bytes=size.raw_bytes, rows=size.rows + more)
    choices = [
        choose_runner(cut, on_cluster=False, tasks=tasks, backlog=False, costs=costs).runner for cut in (size, larger)
    ]
    assert choices != [Runner.SPARK, Runner.DRIVER]


@given(size=SMALL, costs=COSTS)
@example(size=CutSize(raw_bytes=0, rows=10_000_000), costs=Costs(job_s=0.0, job_cpu_s=0.0))
def test_job_of_one_task_on_this_machine_is_never_sooner_than_the_driver(size: CutSize, costs: Costs) -> None:
    choice = choose_runner(size, on_cluster=False, tasks=1, backlog=False, costs=costs)
    assert choice == Choice(runner=Runner.DRIVER, reason=Reason.CHEAPER_ON_DRIVER)


@pytest.mark.parametrize(
    ("rows", "runner"), [(0, "driver"), (1_000, "driver"), (20_000, "driver"), (30_000, "spark"), (70_000, "spark")]
)
def test_threshold_on_two_cores_lies_between_twenty_and_thirty_thousand_rows(rows: int, runner: str) -> None:
    size = CutSize(raw_bytes=200 * rows, rows=rows)
    assert choose_runner(size, on_cluster=False, tasks=2, backlog=False).runner == runner


@pytest.mark.parametrize(
    ("master", "cluster"),
    [
        ("local", False),
        ("local[2]", False),
        ("local[*]", False),
        ("local-cluster[2,1,1024]", True),
        ("spark://h:7077", True),
        ("yarn", True),
        ("k8s://https://h", True),
    ],
)
def test_master_is_a_cluster_when_executors_are_processes_of_their_own(master: str, cluster: bool) -> None:
    assert is_cluster(master) == cluster
