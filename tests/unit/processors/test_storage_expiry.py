"""Old files of a storage sink go, when they are due, and nothing else does."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from consumers.processors.core.storage.expiry import first_kept_day, has_expired
from consumers.processors.core.storage.paths import PathForm
from consumers.processors.storage.run import StorageRun, StorageSettings
from consumers.processors.storage.store import LeasedStore, LocalStore, ObjectStore
from schemas.config.parse.cron import parse_cron
from schemas.config.sink.storage_uri import parse_storage_uri
from schemas.ids import Ts
from tests.support.storages.aws import ask_s3, aws, s3_keys

__all__ = ["aws"]


@pytest.mark.parametrize(
    ("spec", "at", "due"),
    [
        ("0 0 2 * * *", "2026-03-04 02:00:00", True),
        ("0 0 2 * * *", "2026-03-04 02:00:01", False),
        ("*/15 10-12 * ? * ?", "2026-03-04 23:11:45", True),
        ("*/15 10-12 * ? * ?", "2026-03-04 23:13:45", False),
        ("0 0 0 * * 0", "2026-03-01 00:00:00", True),  # a Sunday
        ("0 0 0 * * 0", "2026-03-02 00:00:00", False),
        ("0 0 0 13 * 5", "2026-03-06 00:00:00", True),  # a Friday, no 13th
        ("0 0 0 13 * 5", "2026-03-07 00:00:00", False),
        ("0 0 0 1,15 3 *", "2026-03-15 00:00:00", True),
        ("0 0 0 1,15 3 *", "2026-04-15 00:00:00", False),
        ("@daily", "2026-03-04 00:00:00", True),
        ("@hourly", "2026-03-04 05:00:00", True),
        ("@annually", "2026-01-01 00:00:00", True),
        ("@annually", "2026-02-01 00:00:00", False),
        ("0 0 2 * *", "2026-03-04 02:00:00", True),  # its last field is as good as open
        ("0 0 2 * * SUN", "2026-03-01 02:00:00", True),
        ("0 0 2 * * sun", "2026-03-02 02:00:00", False),
        ("0 0 2 * * Mon-Wed/2,SAT", "2026-03-04 02:00:00", True),
        ("0 0 2 * * Mon-Wed/2,SAT", "2026-03-03 02:00:00", False),
        ("0 0 2 1 JAN,jul *", "2026-07-01 02:00:00", True),
        ("0 0 2 1 JAN-MAR *", "2026-04-01 02:00:00", False),
        ("@every 1h30m", "2026-03-04 01:30:00+00:00", True),
        ("@every 1h30m", "2026-03-04 02:00:00+00:00", False),
        ("@every 10ms", "2026-03-04 02:00:01+00:00", True),
    ],
)
def test_cron_spec_is_due_as_in_robfigs_cron(spec: str, at: str, due: bool) -> None:
    assert parse_cron(spec).is_due(datetime.fromisoformat(at)) is due


@pytest.mark.parametrize(
    "spec",
    [
        *(
            "",
            "0 0 2 *",
            "60 * * * * *",
            "* * 5-2 * * *",
            "* * * JAN * *",
            "*/0 * * * * *",
            "* * * * * JAN",
            "* * * * SUN *",
        ),
        *("* * * * */JAN *", "* * * * JANUARY *", "@every", "@every day", "@every -1h", "* * * * * 7"),
    ],
)
def test_cron_spec_that_is_none_says_what_it_must_be(spec: str) -> None:
    with pytest.raises(ValueError, match=r"six fields|must hold numbers|must have a duration behind @every"):
        parse_cron(spec)


OLD = (
    "d/t/44/2026-02-28/CDC00000000000000000001.csv",
    "d/t/44/2026-02-28/meta/CDC.index",
    "d/t/44/77/2026-01-01/CDC000001.json",
    "100/44/2026-02-28/CDC000001.csv",
)
KEPT = (
    "d/t/44/2026-03-01/CDC000001.csv",
    "d/t/meta/schema_44_0000000001.json",
    "d/2026-01-01/meta/schema_44_0000000001.json",
    "2026-01-01/t/44/2026-03-01/CDC000001.csv",
    ".tidebus/feed/partition-0",
    "metadata",
)
CHECKPOINT = Ts(int(datetime(2026, 3, 4, 1, tzinfo=UTC).timestamp() * 1000) << 18)


def test_files_of_days_long_before_the_checkpoint_have_expired_and_no_others() -> None:
    kept_from = first_kept_day(CHECKPOINT, 3, UTC)
    assert kept_from == "2026-03-01"
    assert [path for path in (*OLD, *KEPT) if has_expired(path, kept_from)] == list(OLD)


def is_old(path: str) -> bool:
    return has_expired(path, "2026-03-01")


def test_local_store_removes_old_files_and_folders_that_become_empty(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for path in (*OLD, *KEPT):
        store.put(path, [b"x"])
    leased = LeasedStore(store, lambda: None)
    assert leased.remove_if(is_old) == len(OLD)
    assert {file.relative_to(tmp_path).as_posix() for file in tmp_path.rglob("*") if file.is_file()} == set(KEPT)
    assert not (tmp_path / "d/t/44/2026-02-28").exists()
    store.put(OLD[0], [b"y"])
    assert store.get(OLD[0]) == b"y"


def test_store_without_its_lease_removes_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put(OLD[0], [b"x"])

    def lost() -> None:
        raise RuntimeError("the lease is over")

    with pytest.raises(RuntimeError, match="lease"):
        LeasedStore(store, lost).remove_if(is_old)
    assert store.get(OLD[0]) == b"x"


def test_object_store_removes_old_objects(aws: str) -> None:
    ask_s3(aws, "expiry", "PUT")
    store = ObjectStore(parse_storage_uri(f"s3://expiry/out?access-key=ak&secret-access-key=sk&endpoint={aws}"))
    for path in (*OLD, *KEPT):
        store.put(path, [b"x"])
    assert store.remove_if(is_old) == len(OLD)
    assert set(s3_keys(aws, "expiry")) == {f"out/{path}" for path in KEPT}


def run_at(tmp_path: Path, moments: list[datetime], **settings: Any) -> StorageRun:
    paths = PathForm(extension="csv", date_separator=settings.pop("date_separator", "day"))
    given = StorageSettings(changefeed="f", paths=paths, start_ts=Ts(1), **settings)
    source: Any = None
    return StorageRun(source, LocalStore(tmp_path), given, now=lambda: moments[0])


@pytest.mark.parametrize(
    ("settings", "removes"),
    [({"expiration_days": 3}, True), ({}, False), ({"expiration_days": 3, "date_separator": "month"}, False)],
)
def test_leader_removes_old_files_at_two_at_night(tmp_path: Path, settings: dict[str, Any], removes: bool) -> None:
    store = LocalStore(tmp_path)
    store.put(OLD[0], [b"x"])
    moments = [datetime(2026, 3, 4, 1, 59, 58, tzinfo=UTC)]
    run = run_at(tmp_path, moments, **settings)
    moments[0] += timedelta(seconds=1)
    run.note_checkpoint(CHECKPOINT)
    assert store.get(OLD[0]) == b"x"
    moments[0] += timedelta(seconds=2)
    run.note_checkpoint(CHECKPOINT)
    run.close()
    assert (store.get(OLD[0]) is None) is removes
