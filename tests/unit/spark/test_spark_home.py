"""Spark's home of links: all of pyspark's but MLlib's jar, used only as long as it is exactly that."""

import os
from pathlib import Path

import pytest

from compose.stack import spark_files, spark_home
from compose.stack.jars import part_dir
from compose.stack.spark_home import home_jars, make_spark_home, usable_spark_home
from sorters.spark.connector import SPARK_CLASS_PATH_ENV, SPARK_JARS_ENV
from sorters.spark.session import SPARK_JVM_ENV

JARS = ("spark-core_2.13-4.0.0.jar", "spark-mllib-local_2.13-4.0.0.jar", "spark-mllib_2.13-4.0.0.jar")


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a small pyspark."""
    folder = tmp_path / "pyspark"
    for name in (
        "bin/spark-submit",
        "python/lib/pyspark.zip",
        "__pycache__/conf.pyc",
        *(f"jars/{jar}" for jar in JARS),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    monkeypatch.setenv("TIDEBUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(spark_home, "pyspark_jars", lambda: folder / "jars")
    return folder


def test_it_has_all_that_pyspark_has_but_mllibs_jar(spark: Path) -> None:
    assert usable_spark_home() is None
    make_spark_home()
    home = usable_spark_home()
    assert home is not None
    assert sorted(jar.name for jar in (home / "jars").iterdir()) == sorted(JARS[:2])
    assert sorted(file.name for file in home.iterdir()) == ["bin", "jars", "python"]
    assert (home / "bin" / "spark-submit").read_text() == "bin/spark-submit"
    assert (home / "jars" / JARS[0]).read_text() == f"jars/{JARS[0]}"
    assert [jar.name for jar in home_jars()] == sorted(JARS[:2])


def test_one_that_has_become_another_is_not_used_and_made_anew(spark: Path) -> None:
    make_spark_home()
    home = usable_spark_home()
    assert home is not None
    for harm in (
        lambda: (home / "jars" / "other.jar").write_text("planted"),
        lambda: (home / "jars" / "other.jar").symlink_to(spark / "jars" / JARS[2]),
        lambda: (home / "jars" / JARS[0]).unlink(),
        lambda: (spark / "jars" / "newer.jar").write_text("pyspark was changed"),
    ):
        harm()
        assert usable_spark_home() is None
        make_spark_home()
        assert usable_spark_home() == home
    link = home / "jars" / JARS[0]
    link.unlink()
    link.symlink_to(spark / "jars" / JARS[1])
    assert usable_spark_home() is None
    assert [file.name for file in home.parent.iterdir()] == [home.name]


def test_what_executors_of_local_cluster_leave_there_harms_nothing(spark: Path) -> None:
    make_spark_home()
    home = usable_spark_home()
    assert home is not None
    for folder in (home, spark):
        (folder / "work" / "app-1").mkdir(parents=True)
    assert usable_spark_home() == home


def test_environment_that_links_to_the_same_pyspark_has_the_same_home(
    spark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_spark_home()
    (tmp_path / "other").symlink_to(spark)
    home = usable_spark_home()
    monkeypatch.setattr(spark_home, "pyspark_jars", lambda: tmp_path / "other" / "jars")
    assert usable_spark_home() == home is not None


@pytest.mark.parametrize("theirs", ["", "/own/spark-sql-kafka.jar"])
def test_spark_is_told_of_home_and_class_path_unless_somebody_else_has(
    spark: Path, monkeypatch: pytest.MonkeyPatch, theirs: str
) -> None:
    for variable in (SPARK_JARS_ENV, SPARK_CLASS_PATH_ENV, SPARK_JVM_ENV, "SPARK_HOME"):
        monkeypatch.setenv(variable, "")  # so that all is as it was afterwards
        monkeypatch.delenv(variable)
    part_dir("spark").mkdir(parents=True)
    pinned = [part_dir("spark") / "spark-sql-kafka.jar"]
    monkeypatch.setattr(spark_files, "cached_spark_jars", lambda: pinned)
    pinned[0].write_text("connector")
    make_spark_home()
    if theirs:
        monkeypatch.setenv(SPARK_JARS_ENV, theirs)
        monkeypatch.setenv("SPARK_HOME", "/own/spark")
    spark_files.name_spark_files()
    assert os.environ["SPARK_HOME"] == ("/own/spark" if theirs else str(usable_spark_home()))
    assert os.environ[SPARK_CLASS_PATH_ENV] == ("" if theirs else str(pinned[0]))
    assert os.environ[SPARK_JARS_ENV] == (theirs or str(pinned[0]))
    monkeypatch.delenv(SPARK_CLASS_PATH_ENV)
    monkeypatch.setenv(SPARK_JARS_ENV, f"/own/driver.jar,{pinned[0]}")
    spark_files.name_spark_files()
    assert os.environ[SPARK_CLASS_PATH_ENV] == str(pinned[0]), "theirs are beside ours"


def test_who_names_jars_of_their_own_needs_no_cache(spark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SPARK_JARS_ENV, "/own/spark-sql-kafka.jar")
    for variable in (SPARK_CLASS_PATH_ENV, SPARK_JVM_ENV, "SPARK_HOME"):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    spark_files.name_spark_files()
    assert os.environ[SPARK_CLASS_PATH_ENV] == ""
    assert os.environ[SPARK_JARS_ENV] == "/own/spark-sql-kafka.jar"
