"""The spill on disk: what comes back, what is deleted when, and every way in which a disk can refuse."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from producers.pull.core.match.spill import SpillCorruptError, SpillRefusedError
from producers.pull.feed.spill_files import SpillFiles, SpillSettings


def segments(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.spill"))


def files(folder: Path, **settings: Any) -> SpillFiles:
    return SpillFiles(SpillSettings(folder=folder, **settings))


def test_spill_blobs_then_each_comes_back_as_it_was(tmp_path: Path) -> None:
    spill = files(tmp_path, segment_bytes=100)
    blobs = [os.urandom(size) for size in (1, 0, 99, 1_000, 30)]
    addresses = [spill.put(blob) for blob in blobs]
    assert spill.stored_bytes == sum(map(len, blobs))
    for address, blob in reversed(list(zip(addresses, blobs, strict=True))):
        assert spill.get(address) == blob
    spill.close()
    assert (segments(tmp_path), spill.file_bytes) == ([], 0)


def test_spill_segment_holds_rows_then_nobody_else_can_read_it(tmp_path: Path) -> None:
    spill = files(tmp_path)
    spill.put(b"a row")
    (segment,) = tmp_path.glob("*.spill")
    assert segment.stat().st_mode & 0o077 == 0
    spill.close()


def test_spill_segment_when_its_last_blob_is_dropped_then_it_is_deleted(tmp_path: Path) -> None:
    spill = files(tmp_path, segment_bytes=100)
    addresses = [spill.put(b"x" * 50) for _ in range(6)]
    assert len(segments(tmp_path)) == 3
    spill.drop(addresses[2])
    assert len(segments(tmp_path)) == 3
    spill.drop(addresses[3])
    assert segments(tmp_path) == ["00000001.spill", "00000003.spill"]
    assert spill.get(addresses[0]) == b"x" * 50
    for at in (0, 1, 4, 5):
        spill.drop(addresses[at])
    assert (segments(tmp_path), spill.stored_bytes, spill.file_bytes) == ([], 0, 0)
    assert spill.get(spill.put(b"again")) == b"again"
    spill.close()


def test_spill_folder_when_a_process_was_killed_then_the_next_one_starts_empty(tmp_path: Path) -> None:
    (tmp_path / "00000007.spill").write_bytes(b"left by a process that was killed")
    (tmp_path / "notes.txt").write_text("not ours")
    spill = files(tmp_path)
    assert segments(tmp_path) == []
    assert (tmp_path / "notes.txt").exists()
    assert spill.get(spill.put(b"x")) == b"x"
    spill.close()


def test_spill_folder_when_another_process_uses_it_then_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    first = files(tmp_path)
    address = first.put(b"mine")
    with pytest.raises(SpillRefusedError) as caught:
        files(tmp_path)
    assert "another process" in str(caught.value)
    assert caught.value.fields["folder"] == str(tmp_path)
    assert first.get(address) == b"mine"
    first.close()
    files(tmp_path).close()


def test_spill_without_a_folder_then_no_name_stands_in_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    spill = SpillFiles()
    address = spill.put(b"nameless")
    assert spill.get(address) == b"nameless"
    assert list(tmp_path.iterdir()) == []
    spill.close()


@pytest.mark.parametrize(
    ("at", "byte"), [(0, b"\xff"), (4, b"\xff"), (9, b"\xff"), (12, b"\xff"), (-1, b"\xff")], ids=str
)
def test_spill_when_a_byte_on_disk_changes_then_reading_says_where(tmp_path: Path, at: int, byte: bytes) -> None:
    spill = files(tmp_path)
    spill.put(b"before")
    address = spill.put(b"a" * 40)
    (path,) = tmp_path.glob("*.spill")
    data = bytearray(path.read_bytes())
    start = data.index(b"TBS1", 1)
    end = start + 12 + 40
    where = end - 1 if at < 0 else start + at
    data[where : where + 1] = byte
    with path.open("r+b") as file:
        file.write(data)
    with pytest.raises(SpillCorruptError) as caught:
        spill.get(address)
    assert (caught.value.fields["path"], caught.value.fields["offset"]) == (str(path), start)
    spill.close()


def test_spill_when_the_file_is_cut_then_reading_says_so(tmp_path: Path) -> None:
    spill = files(tmp_path)
    address = spill.put(b"a" * 40)
    os.truncate(next(tmp_path.glob("*.spill")), 30)
    with pytest.raises(SpillCorruptError, match="damaged"):
        spill.get(address)
    spill.close()


def test_spill_when_it_reaches_its_bound_then_it_is_refused_with_what_is_allowed(tmp_path: Path) -> None:
    spill = files(tmp_path, spill_bytes_max=200)
    address = spill.put(b"a" * 100)
    with pytest.raises(SpillRefusedError, match="spill_bytes_max") as caught:
        spill.put(b"b" * 100)
    assert caught.value.fields["allowed_bytes"] == 200
    assert spill.get(address) == b"a" * 100
    spill.drop(address)
    spill.put(b"b" * 50)
    spill.close()


def test_spill_when_all_rows_left_its_one_segment_then_there_is_room_for_as_many_again(tmp_path: Path) -> None:
    spill = files(tmp_path, spill_bytes_max=300)
    for _ in range(5):
        spill.drop(spill.put(b"a" * 100))
        assert (segments(tmp_path), spill.file_bytes) == ([], 0)
    spill.close()


@pytest.mark.parametrize(
    ("number", "said"), [(errno.ENOSPC, "disk of the spill folder is full"), (errno.EIO, "cannot be written")]
)
def test_spill_when_the_disk_fails_then_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, said: str
) -> None:
    spill = files(tmp_path)
    address = spill.put(b"before")

    def fails(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwrite", fails)
    with pytest.raises(SpillRefusedError, match=said) as caught:
        spill.put(b"after")
    assert os.strerror(number) in str(caught.value.fields["reason"])
    monkeypatch.undo()
    assert spill.get(address) == b"before"
    assert spill.get(spill.put(b"later")) == b"later"
    spill.close()


def test_spill_when_a_write_is_cut_short_then_the_rest_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: whole(fd, data[:7], at))
    spill = files(tmp_path)
    blob = os.urandom(50)
    assert spill.get(spill.put(blob)) == blob
    spill.close()


def test_spill_folder_when_it_cannot_be_made_then_the_start_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpillRefusedError, match="cannot be made"):
        files(tmp_path / "file" / "spill")
