"""Jars are the ones that the repository pins by SHA-256, or they are not used.

``jars.sha256`` has a line for each jar, and for each archive that jars are unpacked from, in the form of ``sha256sum``;
names are relative to the cache's folder ``jars``, so ``sha256sum --check`` can be run there by hand. To move to another
version: fetch it, compare with what the publisher says, and write ``python -m compose.stack.checksums FOLDER`` anew.
"""

import hashlib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from compose.stack.errors import JarChecksumError

CHECKSUMS = Path(__file__).with_name("jars.sha256")
AGAIN = "remove that folder and run `tidebus setup`; if it differs again, what is served is not what was pinned"


def pinned(file: Path = CHECKSUMS) -> Mapping[str, str]:
    """Return SHA-256 sums in hex by name, each name ``FOLDER/[lib/]FILE``."""
    lines = (line.split("  ", 1) for line in file.read_text().splitlines())
    return {name: digest for digest, name in lines}


def check_files(folder: Path, files: Iterable[Path], sums: Mapping[str, str]) -> None:
    """Check files of one part. ``folder`` bears the part's name and version, or is on its way to (see ``jars``).

    Raises:
        JarChecksumError: one is not pinned, or has other bytes.
    """
    part = folder.name.removeprefix(".").partition("@")[0]
    for file in sorted(files):
        name = f"{part}/{file.relative_to(folder).as_posix()}"
        seen = sha256(file)
        if sums.get(name) != seen:
            wanted = sums.get(name, "none of this name")
            raise JarChecksumError(f"a jar is not the pinned one; {AGAIN}", file=file, sha256=seen, pinned=wanted)


def check_part(folder: Path, sums: Mapping[str, str] | None = None) -> None:
    """Check that a fetched part has the pinned jars, all of them and no other.

    Raises:
        JarChecksumError: a jar differs, is missing, or is one too many.
    """
    sums = pinned() if sums is None else sums
    check_files(folder, folder.rglob("*.jar"), sums)
    part = folder.name.removeprefix(".").partition("@")[0]
    for name in sums:
        if (
            name.startswith(f"{part}/")
            and name.endswith(".jar")
            and not (folder / name.removeprefix(f"{part}/")).exists()
        ):
            raise JarChecksumError(f"a pinned jar is missing; {AGAIN}", file=folder / name.removeprefix(f"{part}/"))


def sha256(file: Path) -> str:
    """Return a file's SHA-256 in hex."""
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def lines_of(folder: Path) -> list[str]:
    """Return the lines of :data:`CHECKSUMS` for the jars and archives of all parts in a folder."""
    files = [file for pattern in ("*.jar", "*.tar.gz") for file in folder.glob(f"[!.]*/**/{pattern}")]
    return sorted(
        (f"{sha256(file)}  {file.relative_to(folder).as_posix()}" for file in files), key=lambda line: line[66:]
    )


if __name__ == "__main__":
    print("\n".join(lines_of(Path(sys.argv[1]))))
