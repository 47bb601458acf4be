"""Properties of a lake table that somebody else has changed: what is said names table and property, and what helps."""

from typing import Any
from unittest.mock import MagicMock

import pytest

from schemas.errors import CorruptDataError
from sorters.core.lake.errors import LakeWatermarkLostError
from sorters.run.lake.names import LakeName
from sorters.run.lake.properties import LIFE, RESYNC, SCHEMA_TS, TABLE_ID, WATERMARK
from sorters.run.lake.table import LakeOwner, LakeTable

PROPERTIES = {LIFE: "l", TABLE_ID: "7", SCHEMA_TS: "5", WATERMARK: "6"}


def table_with(
    changed: dict[str, str | None] | None = None, *, refs: str = "main", main: Any = None, tagged: Any = None
) -> LakeTable:
    java: Any = MagicMock()
    java.properties.return_value = PROPERTIES | (changed or {})
    java.currentSnapshot.return_value = main
    java.snapshot.side_effect = {"wm_9": tagged}.get
    jvm = MagicMock()
    jvm.java.lang.String.join.return_value = refs
    return LakeTable(java, LakeName(("shop",), "orders"), LakeOwner(changefeed="d/f", life="l", branch="b"), jvm)


def test_properties_as_they_were_written_are_read() -> None:
    table = table_with()
    assert (table.table_id, table.schema_ts, table.progress().watermark_ts, table.resync()) == (7, 5, 6, None)


@pytest.mark.parametrize("value", ["x", "-1", "1.5", "", "9" * 5000, "٧", None])
@pytest.mark.parametrize("key", [TABLE_ID, SCHEMA_TS])
def test_number_that_is_none_is_named(key: str, value: str | None) -> None:
    table = table_with({key: value})
    with pytest.raises(CorruptDataError) as caught:
        _ = table.table_id if key == TABLE_ID else table.schema_ts
    assert caught.value.fields["property"] == key
    assert "shop" in str(caught.value) and "replicate it anew" in str(caught.value) and len(str(caught.value)) < 500


def test_watermark_that_is_none_is_named() -> None:
    with pytest.raises(CorruptDataError, match="property=tidb"):
        table_with({WATERMARK: "soon"}).progress()


def test_note_of_a_resync_that_does_not_decode_names_the_table_and_what_helps() -> None:
    with pytest.raises(CorruptDataError, match="unset this property") as caught:
        table_with({RESYNC: "{"}).resync()
    assert "shop" in str(caught.value.fields["table"]) and caught.value.fields["property"] == RESYNC


def snapshot(number: int) -> Any:
    made = MagicMock()
    made.sequenceNumber.return_value, made.snapshotId.return_value = number, 100 + number
    made.summary.return_value, made.parentId.return_value = {WATERMARK: str(number)}, None
    return made


@pytest.mark.parametrize("main", [9, 10])
def test_main_that_shows_as_much_as_the_newest_tag_is_taken(main: int) -> None:
    table_with(refs="main\nwm_9\nwm_7", main=snapshot(main), tagged=snapshot(9)).check_main()


def test_main_that_was_turned_back_behind_the_newest_tag_is_refused_with_the_snapshot_that_helps() -> None:
    table_with(main=snapshot(8)).check_main()
    with pytest.raises(LakeWatermarkLostError, match="turned back behind its newest tag") as caught:
        table_with(refs="main\nwm_9\nwm_7", main=snapshot(8), tagged=snapshot(9)).check_main()
    assert (caught.value.fields["tag"], caught.value.fields["snapshot"]) == ("wm_9", 109)


def test_main_that_says_less_than_the_newest_tags_snapshot_is_refused_though_it_is_younger() -> None:
    main, tagged = snapshot(12), snapshot(9)
    main.summary.return_value = {WATERMARK: "8"}
    with pytest.raises(LakeWatermarkLostError, match="turned back behind its newest tag"):
        table_with(refs="main\nwm_9", main=main, tagged=tagged).check_main()
