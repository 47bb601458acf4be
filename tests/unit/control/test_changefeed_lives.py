"""Each checkpoint that a user sets begins another life of a changefeed, which is called as none of those before."""

import pytest

from consumers.control.core.changefeeds import lives
from consumers.control.core.changefeeds.lives import in_new_life
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.sink.topic import destination_feed, life_of, sink_topic

INFO = ChangefeedInfo(
    changefeed_id="a", upstream=UpstreamId("u"), sink_uri="mysql://h/", start_ts=Ts(100), create_time="t"
)
CRC = "856a5aa8"
"""CRC-32 of the creation time."""


def names_of(checkpoints: list[tuple[int, int]]) -> list[str]:
    """Return the lives' names, of the first and after each checkpoint that was set, with the epoch."""
    info, names = INFO, [life_of(INFO)]
    for ts, epoch in checkpoints:
        info = in_new_life(info, Ts(ts), epoch)
        assert info.start_ts == ts
        names.append(life_of(info))
    return names


@pytest.mark.parametrize(
    ("checkpoints", "names"),
    [
        ([(100, 2)], [f"100-{CRC}", f"100-{CRC}-2"]),
        ([(100, 2), (100, 3)], [f"100-{CRC}", f"100-{CRC}-2", f"100-{CRC}-3"]),
        ([(101, 2), (99, 3)], [f"100-{CRC}", f"101-{CRC}", f"99-{CRC}"]),
        ([(101, 2), (100, 4)], [f"100-{CRC}", f"101-{CRC}", f"100-{CRC}-4"]),
        ([(100, 1), (101, 2), (100, 3), (101, 5)], ["100-{}", "100-{}-1", "101-{}", "100-{}-3", "101-{}-5"]),
        ([(100, 0)], [f"100-{CRC}", f"100-{CRC}-1"]),
    ],
    ids=["where it began", "twice", "elsewhere", "back", "back and forth", "of a version without epochs"],
)
def test_life_when_it_begins_where_one_has_begun_before_is_told_apart_by_its_epoch(
    checkpoints: list[tuple[int, int]], names: list[str]
) -> None:
    assert names_of(checkpoints) == [name.format(CRC) for name in names]


def test_lives_beyond_those_that_are_noted_are_told_apart_by_their_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lives, "STARTS_MAX", 2)
    assert names_of([(1, 1), (2, 2), (3, 3), (100, 4)]) == [
        f"100-{CRC}",
        f"1-{CRC}",
        f"2-{CRC}-2",
        f"3-{CRC}-3",
        f"100-{CRC}-4",
    ]


def test_life_told_apart_by_its_epoch_has_a_topic_and_a_position_of_its_own() -> None:
    again = in_new_life(INFO, INFO.start_ts, 2)
    assert sink_topic(again) == f"tidebus.sink.default.a.100-{CRC}-2"
    assert destination_feed("c", again) == f"c/default/a/100-{CRC}-2"
