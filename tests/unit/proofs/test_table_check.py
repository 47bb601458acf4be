"""When a comparison of a table counts."""

from typing import cast

import pytest

from consumers.processors.apply.connection import Connect
from consumers.verify import table_check
from consumers.verify.border import Border
from consumers.verify.core.outcome import TableOutcome, Verdict
from consumers.verify.table_check import CheckSettings, Side, SourceAt, TableCheck, TablePair, _Found
from schemas.ids import Ts

PAIR = TablePair(source=("d", "t"), destination=("d", "t"), partition_of=lambda _: 0)
HERE: Side = "destination"
THERE: Side = "source"


def _seen(verdict: Verdict, lacks: Side | None = None, *, reason: str = "in any words") -> _Found:
    outcome = TableOutcome(source="d.t", destination="d.t", verdict=verdict, ts=Ts(5), reason=reason)
    return _Found(outcome, Border(Ts(5), is_whole=True, position=b""), lacks)


@pytest.mark.parametrize(
    ("looks", "counts"),
    [
        ([_seen(Verdict.DIFFERENT, THERE), _seen(Verdict.SAME)], 1),
        ([_seen(Verdict.DIFFERENT, THERE), _seen(Verdict.DIFFERENT, THERE)], 1),
        ([_seen(Verdict.DIFFERENT, HERE), _seen(Verdict.DIFFERENT, THERE), _seen(Verdict.SAME)], 2),
        ([_seen(Verdict.DIFFERENT)], 0),
        ([_seen(Verdict.DIFFERENT, reason="the table is not at the end of its log")], 0),
    ],
)
def test_a_table_that_one_side_lacks_is_different_when_the_next_look_says_so_too(
    looks: list[_Found], counts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a table is there no snapshot says: a CREATE TABLE that has run since it was opened shows already."""
    left = list(looks)
    check = TableCheck(cast("SourceAt", None), cast("Connect", None), CheckSettings(feed="f"))
    monkeypatch.setattr(check, "_once", lambda pair, deadline: left.pop(0))
    monkeypatch.setattr(table_check, "RETRY_S", 0.0)
    assert check.check(PAIR) is looks[counts].outcome
    assert not left
