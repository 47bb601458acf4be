"""The archive that executors on other machines get: whole, without what they have or nobody needs."""

import ast
import importlib.metadata
import json
import sys
import tarfile
from pathlib import Path

import pytest

from compose.deployment.executor_archive import LIBRARIES, MANIFEST, LibraryMissingError, closure, write_archive
from sorters.spark.session import SHIPPED_PACKAGES
from tests.support.sources.repository import ROOT

OF_SPARK = {"pyspark", "py4j"}
NOT_THERE = {"botocore", "grpc_tools"}
"""Of an extra, and of development."""


def test_libraries_of_the_archive_are_all_that_the_shipped_packages_import() -> None:
    imported = set[str]()
    for package in SHIPPED_PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Import):
                    imported |= {alias.name for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    imported.add(node.module or "")
    tops = {name.split(".")[0] for name in imported} - sys.stdlib_module_names - set(SHIPPED_PACKAGES) - OF_SPARK
    owners = importlib.metadata.packages_distributions()
    packed = {name.lower() for name in closure(LIBRARIES)}
    assert not [top for top in tops - NOT_THERE if not {owner.lower() for owner in owners[top]} & packed]
    assert not packed & OF_SPARK


def test_archive_holds_our_code_the_library_with_what_it_needs_and_a_manifest(tmp_path: Path) -> None:
    target = tmp_path / "a.tar.gz"
    versions = write_archive(target, ["fastavro", "kazoo"])
    assert {"fastavro", "kazoo"} <= versions.keys()
    with tarfile.open(target) as archive:
        names = set(archive.getnames())
        manifest = json.load(archive.extractfile(MANIFEST) or pytest.fail("no manifest"))
    assert {"sorters/spark/tasks/cut_task.py", "schemas/ids.py", "edges/kafka/offsets.py", "kazoo/client.py"} <= names
    assert not [name for name in names if ".." in name or name.startswith(("/", "consumers")) or "/tests/" in name]
    assert manifest["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert manifest["libraries"] == versions
    assert [file.name for file in tmp_path.iterdir()] == ["a.tar.gz"], "no draft is left"


def test_archive_without_a_library_that_is_needed_is_refused_and_the_former_one_stays(tmp_path: Path) -> None:
    target = tmp_path / "a.tar.gz"
    target.write_bytes(b"former")
    with pytest.raises(LibraryMissingError) as raised:
        write_archive(target, ["no-such-library"])
    assert raised.value.fields == {"library": "no-such-library"}
    assert target.read_bytes() == b"former"
