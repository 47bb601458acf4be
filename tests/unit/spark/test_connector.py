"""Where Spark's driver has the jars from that pyspark lacks: on its class path, copied by Spark, or as a user says."""

import pytest

from sorters.log.failures import SparkJarsMissingError
from sorters.spark.connector import SPARK_CLASS_PATH_ENV, SPARK_JARS_ENV, SUBMITTED_ENV, jar_settings

KAFKA, ICEBERG, DRIVER = "/cache/kafka.jar", "/cache/iceberg.jar", "/own/driver.jar"
CLASS_PATH, JARS = "spark.driver.extraClassPath", "spark.jars"


@pytest.fixture(autouse=True)
def _named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SUBMITTED_ENV, raising=False)
    monkeypatch.setenv(SPARK_JARS_ENV, f"{KAFKA},{ICEBERG}")
    monkeypatch.setenv(SPARK_CLASS_PATH_ENV, f"{KAFKA}:{ICEBERG}")


def test_driver_that_is_its_own_executor_has_them_on_its_class_path_and_nothing_is_copied() -> None:
    assert jar_settings("local[2]", {}) == {CLASS_PATH: f"{KAFKA}:{ICEBERG}"}


@pytest.mark.parametrize("master", ["spark://127.0.0.1:7077", "local-cluster[2,1,1024]", "k8s://https://127.0.0.1:1"])
def test_executors_that_are_other_processes_have_them_copied(master: str) -> None:
    assert jar_settings(master, {}) == {CLASS_PATH: f"{KAFKA}:{ICEBERG}", JARS: f"{KAFKA},{ICEBERG}"}


def test_jars_beside_them_are_copied_with_them_for_classes_on_the_class_path_would_not_see_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SPARK_JARS_ENV, f"{KAFKA},{ICEBERG},{DRIVER}")
    assert jar_settings("local[2]", {}) == {JARS: f"{KAFKA},{ICEBERG},{DRIVER}"}
    monkeypatch.setenv(SPARK_JARS_ENV, f"{KAFKA},{ICEBERG}")
    assert jar_settings("local[2]", {JARS: DRIVER}) == {JARS: DRIVER}


def test_jars_that_nobody_has_checked_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SPARK_CLASS_PATH_ENV)
    assert jar_settings("local[2]", {}) == {JARS: f"{KAFKA},{ICEBERG}"}


def test_jvm_that_spark_submit_has_started_has_its_class_path_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SUBMITTED_ENV, "1")
    assert jar_settings("local[2]", {}) == {JARS: f"{KAFKA},{ICEBERG}"}


def test_class_path_of_a_user_comes_first() -> None:
    given = {CLASS_PATH: "/own/log.jar"}
    assert jar_settings("local[2]", given) == {CLASS_PATH: f"/own/log.jar:{KAFKA}:{ICEBERG}"}


def test_nobody_says_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SPARK_JARS_ENV)
    with pytest.raises(SparkJarsMissingError):
        jar_settings("local[2]", {})
