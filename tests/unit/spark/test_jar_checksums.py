"""Jars are the ones that the repository pins, or they are refused by name."""

import hashlib
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from compose.operator.doctor import examine
from compose.stack import jars
from compose.stack.checksums import CHECKSUMS, check_part, lines_of, pinned
from compose.stack.errors import JarChecksumError, JarsMissingError
from compose.stack.spark_files import name_spark_files
from schemas.errors import Action
from sorters.spark.connector import SPARK_JARS_ENV


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def part(tmp_path: Path) -> Path:
    folder = tmp_path / "spark-4.0.0"
    (folder / "lib").mkdir(parents=True)
    (folder / "connector.jar").write_text("connector")
    (folder / "lib" / "pool.jar").write_text("pool")
    return folder


SUMS = {"spark-4.0.0/connector.jar": digest("connector"), "spark-4.0.0/lib/pool.jar": digest("pool")}


def test_checksums_pin_the_jars_of_every_part_and_the_archive_that_is_unpacked() -> None:
    for line in CHECKSUMS.read_text().splitlines():
        assert re.fullmatch(r"[0-9a-f]{64}  [\w.@+-]+(/[\w.@+-]+)+", line), line
    folders = {name.partition("/")[0] for name in pinned()}
    assert folders == {jars.part_dir(part).name for part in jars.PARTS}
    assert [name for name in pinned() if name.endswith(".tar.gz")] == [
        f"registry-{jars.REGISTRY_VERSION}/apicurio-registry-app-{jars.REGISTRY_VERSION}-all.tar.gz"
    ]


def test_jars_of_this_machine_are_the_pinned_ones() -> None:
    jars.fetch(jars.PARTS)
    named = {name for name in pinned() if name.endswith(".jar")}
    assert {line[66:] for line in lines_of(jars.part_dir("spark").parent) if line[66:] in named} == named


def test_part_with_all_pinned_jars_is_taken(part: Path) -> None:
    check_part(part, SUMS)


@pytest.mark.parametrize("name", ["connector.jar", "lib/pool.jar"])
def test_jar_with_other_bytes_is_refused_by_name(part: Path, name: str) -> None:
    (part / name).write_text("tampered")
    with pytest.raises(JarChecksumError, match=re.escape(str(part / name))) as refused:
        check_part(part, SUMS)
    assert refused.value.fields["sha256"] == digest("tampered")
    assert refused.value.action is Action.STOP_CHANGEFEED, "the same bytes would come again"


def test_jar_that_nobody_pinned_is_refused_by_name(part: Path) -> None:
    (part / "evil.jar").write_text("connector")
    with pytest.raises(JarChecksumError, match=r"evil\.jar"):
        check_part(part, SUMS)


def test_jar_that_is_missing_is_named(part: Path) -> None:
    (part / "connector.jar").unlink()
    with pytest.raises(JarChecksumError, match=r"missing.*connector\.jar"):
        check_part(part, SUMS)


class Ivy:
    """In place of the process that fetches: what it puts into the folder is somebody else's."""

    returncode, stdout, stderr = 0, "", ""

    def __init__(self, command: list[str], **_: object) -> None:
        into = Path(command[command.index("-retrieve") + 1].partition("/[")[0])
        if "spark" in command:
            (into / "spark-sql-kafka-0-10_2.13-4.0.0.jar").write_text("tampered")
            return
        (into / "run.jar").write_text("tampered")
        with tarfile.open(into / f"apicurio-registry-app-{jars.REGISTRY_VERSION}-all.tar.gz", "w:gz") as packed:
            packed.add(into / "run.jar", "unpacked.jar")


@pytest.mark.parametrize(("part_name", "named"), [("spark", "spark-sql-kafka"), ("registry", "all.tar.gz")])
def test_what_is_fetched_with_other_bytes_never_gets_into_the_cache(
    part_name: jars.Part, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEBUS_CACHE", str(tmp_path))
    monkeypatch.setattr(jars, "find_java", lambda: Path("java"))
    monkeypatch.setattr(subprocess, "run", Ivy)
    with pytest.raises(JarChecksumError, match=named):
        jars.fetch([part_name], lambda _: None)
    assert [file.name for file in (tmp_path / "jars").iterdir()] == [".lock"]


def test_sorter_uses_the_caches_jars_and_fetches_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SPARK_JARS_ENV, raising=False)
    monkeypatch.setenv("TIDEBUS_CACHE", str(tmp_path))
    monkeypatch.setattr(jars, "_resolve", lambda *_: pytest.fail("a process that serves fetches nothing"))
    with pytest.raises(JarsMissingError, match="tidebus setup"):
        name_spark_files()
    folder = jars.part_dir("spark")
    folder.mkdir(parents=True)
    (folder / "spark-sql-kafka-0-10_2.13-4.0.0.jar").write_text("tampered")
    with pytest.raises(JarChecksumError, match=r"spark-sql-kafka.*\.jar"):
        name_spark_files()


def test_doctor_names_a_jar_that_is_not_the_pinned_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEBUS_CACHE", str(tmp_path))
    folder = jars.part_dir("kafka")
    folder.mkdir(parents=True)
    (folder / "kafka-clients-4.3.1.jar").write_text("tampered")
    (finding,) = [finding for finding in examine(tmp_path) if finding.name == "jars"]
    assert not finding.ok and finding.needed
    assert "kafka-clients-4.3.1.jar" in finding.said
