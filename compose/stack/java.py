"""Find the machine's Java and say in one sentence when it is missing or too old."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from compose.stack.errors import MachineError

JAVA_MAJOR_MIN = 17
"""Kafka 4 brokers and Spark 4 both need it."""
_VERSION = re.compile(r'version "(\d+)')
_RELEASED = re.compile(r'^JAVA_VERSION="(\d+)', re.MULTILINE)


def find_java() -> Path:
    """Return the ``java`` to run: ``$JAVA_HOME/bin/java`` where that exists, else the one on the PATH.

    Raises:
        MachineError: none found, or older than 17.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home and (Path(home) / "bin" / "java").exists() else None
    java = java or shutil.which("java")
    if java is None:
        raise MachineError(f"no java found: install Java {JAVA_MAJOR_MIN} or newer, or set JAVA_HOME")
    major = java_major(Path(java))
    if major < JAVA_MAJOR_MIN:
        raise MachineError(f"java is version {major}, but {JAVA_MAJOR_MIN} or newer is needed", java=java)
    return Path(java)


def java_major(java: Path) -> int:
    """Return the major version that the file ``release`` beside ``bin`` says, or else ``java -version``, which takes a
    JVM's start (0: none was recognised).
    """
    release = java.resolve().parent.parent / "release"
    said = _RELEASED.search(release.read_text()) if release.is_file() else None
    if said:
        return int(said.group(1))
    ran = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=60, check=False)
    match = _VERSION.search(ran.stderr + ran.stdout)
    return int(match.group(1)) if match else 0
