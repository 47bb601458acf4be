"""Tells Spark where the jars are on this machine that it needs beside its own, and how its JVM starts sooner."""

import logging
import os
from pathlib import Path

from compose.stack.class_archives import archive_flags, option_text
from compose.stack.jars import cached_spark_jars, part_dir, pinned_spark_jars
from compose.stack.java import find_java
from compose.stack.spark_home import HOME_ENV, home_jars, usable_spark_home
from sorters.spark.connector import SPARK_CLASS_PATH_ENV, SPARK_JARS_ENV
from sorters.spark.session import SPARK_JVM_ENV

log = logging.getLogger(__name__)


def name_spark_files() -> None:
    """Tell :mod:`sorters.spark`, in this process and what it starts, where the jars are, unless it was told.

    A process that serves fetches nothing: the jars are those of ``tidebus setup``, or of whoever set the variable.

    Raises:
        JarsMissingError: they are not here.
        JarChecksumError: those in the cache are not the pinned ones.
        MachineError: no Java.
    """
    java = find_java()
    java_home = os.environ.get("JAVA_HOME")
    if java_home and not (Path(java_home) / "bin" / "java").exists():
        log.warning("JAVA_HOME names no Java", extra={"java_home": java_home, "taken": str(java)})
        del os.environ["JAVA_HOME"]  # Spark's script knows no other way then
    named = os.environ.get(SPARK_JARS_ENV)
    if named is None or SPARK_CLASS_PATH_ENV not in os.environ:
        # Beside a connector of another version ours must not be on the class path.
        pinned = {*map(str, pinned_spark_jars())} if part_dir("spark").is_dir() else set()
        are_ours = named is None or (bool(pinned) and pinned <= {*named.split(",")})
        jars = [str(jar) for jar in cached_spark_jars()] if are_ours else []
        os.environ.setdefault(SPARK_JARS_ENV, ",".join(jars))
        os.environ[SPARK_CLASS_PATH_ENV] = "" if any(os.pathsep in jar for jar in jars) else os.pathsep.join(jars)
    if HOME_ENV not in os.environ and (home := usable_spark_home()) is not None:
        os.environ[HOME_ENV] = str(home)
    if SPARK_JVM_ENV not in os.environ:
        os.environ[SPARK_JVM_ENV] = option_text(archive_flags("spark", spark_class_path()))


def spark_class_path() -> list[Path]:
    """Return the jars that Spark's JVM starts with where all is as ``tidebus setup`` has made it."""
    return [*pinned_spark_jars(), *home_jars()]
