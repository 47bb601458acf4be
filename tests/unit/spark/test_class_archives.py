"""Archives of loaded classes: of which Java and jars one is, and that one which was not made is not named."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from compose.stack import class_archives
from compose.stack.class_archives import archive_flags, archive_of, make_archive, option_text


@pytest.fixture
def jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIDEBUS_CACHE", str(tmp_path / "cache"))
    jar = tmp_path / "a.jar"
    jar.write_bytes(b"classes")
    return jar


def test_one_that_was_made_is_named_and_not_made_again(jar: Path) -> None:
    used: list[str] = []

    def use(options: Sequence[str]) -> None:
        used.append(options[0])
        Path(options[0].partition("=")[2]).write_bytes(b"archive")

    assert archive_flags("kafka", [jar]) == []
    for _ in range(2):
        make_archive("kafka", [jar], use, print)
    assert len(used) == 1
    archive = archive_of("kafka", [jar])
    assert archive.read_bytes() == b"archive"
    assert archive_flags("kafka", [jar])[0] == f"-XX:SharedArchiveFile={archive}"
    assert archive_flags("spark", [jar]) == [], "an archive is of one kind of JVM"
    assert [file.name for file in archive.parent.iterdir()] == [archive.name]


def test_other_jars_or_another_java_want_another(jar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = archive_of("kafka", [jar])
    jar.write_bytes(b"more classes")
    second = archive_of("kafka", [jar])
    monkeypatch.setattr(class_archives, "_java_edition", lambda: "another")
    assert len({first, second, archive_of("kafka", [jar])}) == 3


def test_an_older_one_goes_when_another_is_made(jar: Path) -> None:
    def use(options: Sequence[str]) -> None:
        Path(options[0].partition("=")[2]).write_bytes(b"archive")

    make_archive("kafka", [jar], use, print)
    make_archive("spark", [jar], use, print)
    old = archive_of("kafka", [jar])
    jar.write_bytes(b"more classes")
    make_archive("kafka", [jar], use, print)
    assert not old.exists()
    assert {file.name.split("-")[0] for file in old.parent.iterdir()} == {"kafka", "spark"}


def test_a_java_that_writes_none_and_a_start_that_fails_leave_nothing(jar: Path) -> None:
    said: list[str] = []
    make_archive("kafka", [jar], lambda _: None, said.append)
    assert said[-1].startswith("this Java keeps no archive")

    def half(options: Sequence[str]) -> None:
        Path(options[0].partition("=")[2]).write_bytes(b"half")
        raise TimeoutError

    with pytest.raises(TimeoutError):
        make_archive("kafka", [jar], half, print)
    assert list(archive_of("kafka", [jar]).parent.iterdir()) == []
    assert archive_flags("kafka", [jar]) == []


def test_options_stay_apart_where_a_path_has_spaces_or_quotes() -> None:
    options = ["-Xmx1g", '-XX:SharedArchiveFile=/a b/c"d\\e.jsa', ""]
    assert shlex.split(option_text(options)) == options  # Spark's parser takes a command line as a shell does
