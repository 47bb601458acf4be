"""One archive with all that executors import, for machines that have Spark and Python and nothing of ours.

    tidebus-executors.tar.gz     unpacked by Spark in each executor's working folder (``spark.archives``)
      tidebus-executors.json     the version of Python that it is for, and what is in it
      schemas/ edges/ sorters/   our code; what a driver sends goes before it
      numpy/ pyarrow/ …          libraries as they are installed here, with the native ones that they bring

Libraries are of this machine's kind and Python's minor version. pyspark is not among them: executors have their own.
"""

import io
import json
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Final

from schemas.errors import Action, BusError
from sorters.spark.session import SHIPPED_PACKAGES

LIBRARIES: Final = (
    "confluent-kafka",
    "cryptography",
    "fastavro",
    "fsspec",
    "google-re2",
    "grpcio",
    "kazoo",
    "numpy",
    "protobuf",
    "pyarrow",
)
"""What the shipped packages import, as distributions; what these need comes with them."""
LIBRARIES_IF_THERE: Final = ("azure-identity", "azure-storage-blob", "google-auth", "requests", "s3fs")
"""Of extras."""
LEFT_OUT: Final = frozenset({"tests", "include", "__pycache__"})
"""Folders of libraries that nobody imports."""
MANIFEST: Final = "tidebus-executors.json"
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


class LibraryMissingError(BusError):
    """A library that executors need is not installed here, or not as files."""

    code, action = "executors.library_missing", Action.STOP_CHANGEFEED


def write_archive(target: Path, libraries: Iterable[str] = LIBRARIES) -> dict[str, str]:
    """Write the archive and return the versions of the libraries in it. A file that was there goes when it is whole.

    Raises:
        LibraryMissingError: see there.
        OSError: the machine refuses.
    """
    wanted = closure(libraries)
    draft = target.with_name(f".{target.name}.draft")
    try:
        with tarfile.open(draft, "w:gz", compresslevel=1) as archive:
            _add_text(archive, MANIFEST, json.dumps(_manifest(wanted), indent=2) + "\n")
            root = Path(__file__).resolve().parents[2]
            for package in SHIPPED_PACKAGES:
                for file in sorted((root / package).rglob("*.py")):
                    archive.add(file, str(file.relative_to(root)))
            for library in wanted.values():
                for name, file in _files(library):
                    archive.add(file, name)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return {name: library.version for name, library in sorted(wanted.items())}


def closure(libraries: Iterable[str]) -> dict[str, metadata.Distribution]:
    """Return these and what they need, by name.

    Raises:
        LibraryMissingError: see there.
    """
    known: dict[str, metadata.Distribution] = {}
    open_: list[tuple[str, frozenset[str], bool]] = [(name, frozenset(), True) for name in libraries]
    open_ += [(name, frozenset(), False) for name in LIBRARIES_IF_THERE]
    seen: set[tuple[str, frozenset[str]]] = set()
    while open_:
        name, extras, is_needed = open_.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            library = metadata.distribution(name)
        except metadata.PackageNotFoundError as error:
            if is_needed:
                raise LibraryMissingError("a library that executors need is not installed", library=name) from error
            continue  # of another Python or system
        known[name] = library
        for text in library.requires or ():
            requirement, _, marker = text.partition(";")
            asked = _EXTRA.search(marker)
            match = _REQUIREMENT.match(requirement)
            if match is not None and (asked is None or asked.group(1) in extras):
                further = frozenset(extra.strip() for extra in (match.group(2) or "").split(",") if extra.strip())
                open_.append((re.sub(r"[-_.]+", "-", match.group(1)).lower(), further, False))
    return known


def _files(library: metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """Yield the files of a library and their names in the archive."""
    if not library.files:
        raise LibraryMissingError("a library does not say which files are its own", library=library.name)
    for file in sorted(library.files):
        parts = PurePosixPath(file).parts
        if ".." in parts or LEFT_OUT & set(parts) or file.suffix == ".pyc":
            continue  # commands, and what is of no use there
        yield str(PurePosixPath(file)), Path(str(library.locate_file(file)))


def _manifest(wanted: dict[str, metadata.Distribution]) -> dict[str, object]:
    return {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "platform": sys.platform,
        "tidebus": metadata.version("tidebus"),
        "libraries": {name: library.version for name, library in sorted(wanted.items())},
    }


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(text.encode())
    archive.addfile(entry, io.BytesIO(text.encode()))
