"""What a task of the Spark source does to pyspark's Python worker: nothing that another task could see."""

import os
import zipfile
import zipimport
from pathlib import Path

import pytest

from sorters.source import python_worker


def write_zip(file: Path, *modules: str) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for name in modules:
            archive.writestr(f"{name}.py", "")


def test_zip_file_is_read_again_when_it_has_changed_and_not_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, plain, read = tmp_path / "code.zip", python_worker._PLAIN, list[str]()
    write_zip(file, "one")
    importer = zipimport.zipimporter(str(file))

    def reading(which: zipimport.zipimporter) -> None:
        read.append(which.archive)
        plain(which)

    monkeypatch.setattr(python_worker, "_PLAIN", reading)
    for _ in range(3):
        python_worker._invalidate_changed(importer)
    assert read == [str(file)]
    assert importer.find_spec("two") is None

    write_zip(file, "one", "two")
    later = file.stat().st_mtime_ns + 1_000_000_000
    os.utime(file, ns=(later, later))
    python_worker._invalidate_changed(importer)

    assert read == [str(file)] * 2
    assert importer.find_spec("two") is not None
