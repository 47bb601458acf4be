"""Fetch the jars of the local stack, and of Spark's Kafka connector, once, with the Ivy that ships inside pyspark.

Every part has a folder under :func:`cache_dir` whose name carries its version. A folder appears by rename, so it is
whole or absent; two processes that fetch at once wait for each other by file lock. What was fetched, and what a cache
holds from earlier, is compared with the repository's checksums (:mod:`compose.stack.checksums`) each time it is used.
"""

import fcntl
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from compose.stack.checksums import check_files, check_part, pinned
from compose.stack.errors import JarsError, JarsMissingError, MachineError
from compose.stack.java import find_java

KAFKA_VERSION = "4.3.1"
REGISTRY_VERSION = "2.6.13.Final"
SPARK_VERSION = "4.0.0"
"""Of the connector; must be the installed pyspark's (checked in a test), whose pin stands in pyproject.toml."""
ICEBERG_VERSION = "1.10.1"
"""Whose runtime for Spark 4.0 and Scala 2.13 is one jar with all that it needs."""

Part = Literal["kafka", "registry", "spark", "iceberg"]
PARTS: tuple[Part, ...] = ("kafka", "registry", "spark", "iceberg")
SPARK_PARTS: tuple[Part, ...] = ("spark", "iceberg")
"""What a sorter needs."""
_VERSIONS: dict[Part, str] = {
    "kafka": KAFKA_VERSION,
    "registry": REGISTRY_VERSION,
    "spark": SPARK_VERSION,
    "iceberg": ICEBERG_VERSION,
}
_IVY_TIMEOUT_S = 900
"""The registry is 136 MB: nine minutes at 2 Mbit/s; a hung mirror must not hang `make setup` for ever."""

Say = Callable[[str], None]


def checkout() -> Path | None:
    """Return the project's folder when this code runs from a checkout (editable install), else None."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").exists() and (root / "tests").is_dir() else None


def cache_dir() -> Path:
    """Return where fetched jars are kept: ``$TIDEBUS_CACHE``, the checkout's ``.cache``, or the user's cache folder; by
    where it really is, since an archive of classes (:mod:`compose.stack.class_archives`) is of paths as they are said.
    """
    if given := os.environ.get("TIDEBUS_CACHE"):
        return Path(given).resolve()
    if root := checkout():
        return (root / ".cache").resolve()
    return (Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tidebus").resolve()


def pyspark_jars() -> Path:
    """Return pyspark's jars folder, which has ZooKeeper and Ivy too, by where it really is (see :func:`cache_dir`)."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MachineError("pyspark is not installed in this Python environment")
    return Path(spec.origin).resolve().parent / "jars"


def part_dir(part: Part) -> Path:
    """Return the folder of one part, whether or not it has been fetched."""
    return cache_dir() / "jars" / f"{part}-{_VERSIONS[part]}"


def missing_parts() -> list[Part]:
    """Return the parts that have not been fetched yet."""
    return [part for part in _VERSIONS if not part_dir(part).is_dir()]


def kafka_jars(say: Say = print) -> list[Path]:
    """Return the broker's class path, fetching it where needed."""
    return sorted(_fetched("kafka", say).glob("*.jar"))


def registry_home(say: Say = print) -> Path:
    """Return the unpacked registry's folder, fetching it where needed."""
    return _fetched("registry", say)


def spark_jars(say: Say = print) -> list[Path]:
    """Return the jars that pyspark itself does not have (``spark.jars``): Spark's Kafka connector, and Iceberg."""
    return sorted(jar for part in SPARK_PARTS for jar in _fetched(part, say).glob("*.jar"))


def pinned_spark_jars() -> list[Path]:
    """Return those jars in the cache, as they are. Without Iceberg there are no lake tables, and all else is."""
    return sorted(jar for part in SPARK_PARTS for jar in part_dir(part).glob("*.jar"))


def cached_spark_jars() -> list[Path]:
    """Return those jars from the cache; nothing is fetched.

    Raises:
        JarsMissingError: the Kafka connector is not there.
        JarChecksumError: they are not the pinned ones.
    """
    folder = part_dir("spark")
    if not folder.is_dir():
        raise JarsMissingError("spark's kafka connector is not in the cache; run `tidebus setup`", folder=folder)
    for part in SPARK_PARTS:
        if part_dir(part).is_dir():
            check_part(part_dir(part))
    return pinned_spark_jars()


def fetch(parts: Iterable[Part], say: Say = print) -> None:
    """Fetch those that are missing, and check the others."""
    for part in parts:
        _fetched(part, say)


def _fetched(part: Part, say: Say) -> Path:
    """Return a part's folder, with the pinned jars.

    Raises:
        JarsError: it could not be fetched.
        JarChecksumError: what was fetched, now or once, is not what the repository pins.
    """
    folder = part_dir(part)
    if not folder.is_dir():
        _fetch(part, folder, say)
    check_part(folder)
    return folder


def _fetch(part: Part, folder: Path, say: Say) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent / ".lock"):
        if not folder.is_dir():
            say(f"fetching {part} {_VERSIONS[part]} (once)")
            fresh = folder.with_name(f".{folder.name}@{os.getpid()}")
            try:
                _resolve(part, fresh)
                check_part(fresh)
                fresh.rename(folder)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)


def _resolve(part: Part, into: Path) -> None:
    into.mkdir(parents=True)
    ivy_file = into / "ivy.xml"
    text = (Path(__file__).parent / "ivy-stack.xml").read_text()
    for name, version in _VERSIONS.items():
        text = text.replace(f"@{name}@", version)
    ivy_file.write_text(text)
    ivy = next(pyspark_jars().glob("ivy-*.jar"), None)
    if ivy is None:
        raise JarsError("pyspark's jars folder has no ivy", folder=pyspark_jars())
    command = [str(find_java()), "-cp", str(ivy), "org.apache.ivy.Main", "-m2compatible", "-warn"]
    command += ["-cache", str(into.parent / ".ivy"), "-ivy", str(ivy_file), "-confs", part]
    command += ["-retrieve", f"{into}/[artifact]-[revision](-[classifier]).[ext]"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_IVY_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise JarsError(f"ivy did not finish in {_IVY_TIMEOUT_S} s", part=part) from error
    archives = list(into.glob("*.tar.gz"))
    if ran.returncode != 0 or not (archives or list(into.glob("*.jar"))):
        last = " | ".join(line for line in (ran.stdout + ran.stderr).splitlines()[-15:] if line.strip(" ."))
        raise JarsError("ivy could not resolve a part of the stack", part=part, status=ran.returncode, said=last)
    check_files(into, archives, pinned())
    for archive in archives:
        unpack(archive, into)
        archive.unlink()


def unpack(archive: Path, into: Path) -> None:
    """Unpack a tar archive that is trusted as far as its names stay within ``into``, where Python can see to that."""
    with tarfile.open(archive) as packed:
        # Debian 12's Python is 3.11.2; filters, and the argument of that name, came with 3.11.4.
        packed.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        packed.extractall(into)  # noqa: S202 # filtered by the line above


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    fetch(PARTS)
