"""A home of Spark without what a session would load for nothing: a folder of links to pyspark's own files.

Each session asks all jars on its class path for extensions. MLlib has one, whose functions nobody here calls: 1.5 s of
a session's start, and as many CPU seconds. There is no setting against it but a class path without that jar, and Spark
takes as class path whatever is in the folder ``jars`` of its home
(docs/decisions/2026-11-30-what-a-session-loads.md).
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from compose.stack.jars import cache_dir, pyspark_jars

HOME_ENV: Final = "SPARK_HOME"
LEFT_OUT: Final = ("spark-mllib_",)
"""How the names of jars begin that it lacks."""
_NOT_SPARKS: Final = ("__pycache__", "work")
"""What comes into a home by its use: ``local-cluster`` keeps there what its executors say."""


def spark_home() -> Path:
    """Return where the home of this environment's pyspark is, whether or not it has been made."""
    spark = pyspark_jars().parent.resolve()
    return cache_dir() / "spark-home" / hashlib.sha256(os.fsencode(spark)).hexdigest()[:16]


def make_spark_home() -> None:
    """Make it where it is not there, or not what it is to be."""
    home = spark_home()
    if usable_spark_home() is not None:
        return
    fresh = home.with_name(f".{home.name}@{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        for link, target in _links().items():
            (fresh / link).parent.mkdir(parents=True, exist_ok=True)
            (fresh / link).symlink_to(target)
        shutil.rmtree(home, ignore_errors=True)
        fresh.rename(home)
    except OSError:
        if usable_spark_home() is None:  # not made by somebody else meanwhile
            raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def usable_spark_home() -> Path | None:
    """Return it if it has all links that it is to have and nothing else; else None: Spark starts from pyspark's."""
    home = spark_home()
    try:
        there = {str(link.relative_to(home)): link.readlink() for link in _entries(home)}
    except OSError:  # it is not there, or something in it is no link
        return None
    return home if there == _links() else None


def home_jars() -> list[Path]:
    """Return the jars that Spark's JVM starts with, there or in pyspark's own home."""
    return sorted(jar for jar in pyspark_jars().glob("*.jar") if not _is_left_out(jar))


def _links() -> dict[str, Path]:
    """Return the links by their names below the home."""
    spark = pyspark_jars().parent.resolve()
    return {str(file.relative_to(spark)): file for file in _entries(spark) if not _is_left_out(file)}


def _entries(home: Path) -> Iterator[Path]:
    for file in home.iterdir():
        if file.name == "jars":
            yield from file.iterdir()
        elif file.name not in _NOT_SPARKS:
            yield file


def _is_left_out(file: Path) -> bool:
    return file.name.startswith(LEFT_OUT)
