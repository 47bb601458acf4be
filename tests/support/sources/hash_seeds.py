"""Runs code under several seeds of Python's hashes, by which sets are walked."""

import os
import subprocess
import sys
from collections.abc import Iterable


def printed_with_hash_seeds(code: str, hash_seeds: Iterable[str]) -> set[str]:
    """Return what the code prints in a Python process of each seed."""
    return {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in hash_seeds
    }
