"""What ``tidebus sorter`` hands to the process."""

from typing import Any

import pytest
from click.testing import CliRunner

from compose.cli.sorter_commands import sorter
from sorters.run import job
from sorters.run.job import SorterOptions

ARGUMENTS = ["--changefeed", "cf", "--kafka", "127.0.0.1:1", "--zookeeper", "127.0.0.1:2"]


@pytest.mark.parametrize(("given", "expected"), [([], "auto"), (["--run-cuts", "spark"], "spark")])
def test_sorter_hands_on_who_is_to_run_cuts(monkeypatch: pytest.MonkeyPatch, given: list[str], expected: str) -> None:
    options: list[SorterOptions] = []

    def run(taken: SorterOptions) -> int:
        options.append(taken)
        return 0

    monkeypatch.setattr(job, "run_sorter", run)
    outcome: Any = CliRunner().invoke(sorter, [*ARGUMENTS, *given])
    assert outcome.exception is None, outcome.output
    assert [taken.run_cuts for taken in options] == [expected]
