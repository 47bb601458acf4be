"""Archives of loaded classes (Java's class data sharing), by which the JVMs on this machine start sooner.

`tidebus setup` makes them, once, from a JVM of each kind that is started, used and ended; who starts such a JVM names
its archive. An archive is of one Java and one class path, by which its file is named; Java compares both once more, and
does without an archive that does not fit. So nothing hangs on them but time
(docs/decisions/2026-11-24-quicker-starts.md).
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, Literal

from compose.stack.jars import Say, cache_dir
from compose.stack.java import find_java

Kind = Literal["spark", "kafka", "zookeeper", "registry"]

_QUIET: Final = ("-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
"""What does not fit is no news: the JVM starts as it would without."""


def archive_of(kind: Kind, class_path: Iterable[Path]) -> Path:
    """Return where the archive of a kind of JVM is, whether or not it has been made."""
    seen = hashlib.sha256(_java_edition().encode())
    for file in class_path:
        status = file.stat()
        seen.update(f"\n{file} {status.st_size} {int(status.st_mtime)}".encode())
    return cache_dir() / "classes" / f"{kind}-{seen.hexdigest()[:16]}.jsa"


def archive_flags(kind: Kind, class_path: Iterable[Path]) -> list[str]:
    """Return the options by which a JVM starts from its archive; none where there is no archive."""
    archive = archive_of(kind, class_path)
    return [f"-XX:SharedArchiveFile={archive}", *_QUIET] if archive.is_file() else []


def option_text(options: Iterable[str]) -> str:
    """Return options as Spark takes a JVM's in one setting: apart by spaces, which a path may hold, too.

    >>> print(option_text(["-Xmx1g", "-XX:SharedArchiveFile=/a b.jsa"]))
    "-Xmx1g" "-XX:SharedArchiveFile=/a b.jsa"
    """
    escaped = (option.replace("\\", "\\\\").replace('"', '\\"') for option in options)
    return " ".join(f'"{option}"' for option in escaped)


def make_archive(kind: Kind, class_path: Iterable[Path], use: Callable[[Sequence[str]], None], say: Say) -> None:
    """Make an archive where there is none.

    Args:
        use: starts such a JVM with the options that it is given, lets it do what it does at a start, and ends it; it
            returns when the JVM has ended.
    """
    archive = archive_of(kind, class_path)
    if archive.is_file():
        return
    say(f"noting which classes {kind} loads, for quicker starts (once)")
    archive.parent.mkdir(parents=True, exist_ok=True)
    for old in archive.parent.glob(f"{kind}-*.jsa"):
        old.unlink()
    fresh = archive.with_name(f".{archive.name}@{os.getpid()}")
    try:
        use([f"-XX:ArchiveClassesAtExit={fresh}", *_QUIET])
        if fresh.is_file():
            fresh.rename(archive)
        else:
            say(f"this Java keeps no archive of classes; {kind} starts as before")
    finally:
        fresh.unlink(missing_ok=True)


def _java_edition() -> str:
    java = find_java().resolve()
    release = java.parent.parent / "release"
    return f"{java} {release.read_text() if release.is_file() else java.stat().st_mtime}"
