"""When a service starts Spark beforehand."""

from sorters.core.service.spark_start import BEHIND_S, FIRST_ROWS_S, is_spark_due


def test_spark_starts_after_the_first_rows_of_changefeeds_that_keep_up() -> None:
    assert not is_spark_due(0.0, 0.0)
    assert not is_spark_due(FIRST_ROWS_S, BEHIND_S)
    assert is_spark_due(FIRST_ROWS_S + 0.1, 0.0)


def test_spark_starts_at_once_for_a_changefeed_that_has_a_backlog() -> None:
    assert is_spark_due(0.1, BEHIND_S + 0.1)
    assert not is_spark_due(0.0, BEHIND_S + 0.1), "no changefeed is here"
