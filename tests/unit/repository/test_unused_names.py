"""The check for unused names sees a dead one, and tells where an entry of its list is stale."""

from tests.unused_names import ALLOWED, ROOT, complaints, unused


def test_name_that_nothing_uses_is_named_with_its_line() -> None:
    lines = complaints([("compose/logs.py", 7, "dead_name")])
    assert "compose/logs.py:7: dead_name is used by nothing" in lines


def test_entries_that_allow_nothing_are_named() -> None:
    assert len(complaints([])) == len(ALLOWED)


def test_unused_names_of_one_package_are_those_that_others_use() -> None:
    assert "ChangeStream" not in {name for _, _, name in unused([ROOT / "tidebus", ROOT / "consumers"])}
    assert "kafka_consumer" in {name for _, _, name in unused([ROOT / "edges" / "kafka" / "clients.py"])}
