"""Which of the states that a sorter has told is a table's at a ts, and when none is."""

from dataclasses import replace

import pytest

from consumers.verify.core.proof_at import ProofAnswer, odd_side, proof_at
from schemas.ids import TableId, Ts
from schemas.state_proof.carried import CarriedState
from schemas.state_proof.row_text import TableProof

FIRST = CarriedState(
    table_id=TableId(1), table="s.t", after_ts=Ts(5), ts=Ts(10), proof=TableProof(2, 3), columns=((1, "id"),)
)
SECOND = replace(FIRST, after_ts=Ts(20), ts=Ts(30), proof=TableProof(3, 7))
PROVEN = ProofAnswer(proof=TableProof(2, 3), columns=("id",))


@pytest.mark.parametrize("ts", [10, 15, 20])
def test_state_holds_up_to_the_next_ones_beginning(ts: int) -> None:
    assert proof_at([SECOND, FIRST, FIRST], "s.t", Ts(ts), Ts(40)) == PROVEN
    assert proof_at([SECOND, FIRST], "s.t", Ts(30), Ts(40)).proof == TableProof(3, 7)


def test_ts_within_a_cut_has_no_state_and_one_that_is_not_told_yet_will_have() -> None:
    assert proof_at([FIRST, SECOND], "s.t", Ts(21), Ts(40)).is_between
    assert proof_at([FIRST], "s.t", Ts(21), Ts(20)).is_early
    assert proof_at([SECOND], "s.t", Ts(25), Ts(40)).is_between, "what was told before it is compacted away"


def test_partitions_count_together_and_one_without_a_proof_spoils_all() -> None:
    other = replace(SECOND, table_id=TableId(2), proof=TableProof(1, 4))
    assert proof_at([SECOND, other], "s.t", Ts(30), Ts(30)) == replace(PROVEN, proof=TableProof(4, 3))
    assert proof_at([SECOND, other.lost(Ts(30), "why")], "s.t", Ts(30), Ts(30)).reason == "unproven since 30: why"
    assert proof_at([SECOND, replace(other, image=())], "s.t", Ts(30), Ts(30)).reason == "its image is under way"
    columns = replace(other, columns=((1, "id"), (2, "v")))
    assert proof_at([SECOND, columns], "s.t", Ts(30), Ts(30)).proof is None


def test_table_goes_by_the_name_that_it_has_at_the_ts() -> None:
    renamed = replace(SECOND, table="s.new")
    assert proof_at([FIRST, renamed], "s.t", Ts(15), Ts(40)) == PROVEN
    assert proof_at([FIRST, renamed], "s.new", Ts(30), Ts(40)).proof == TableProof(3, 7)
    assert proof_at([FIRST, renamed], "s.t", Ts(30), Ts(40)).reason == "the changefeed carries no proof of it"


def test_odd_side_is_the_one_that_no_other_is_like() -> None:
    a, b, c = TableProof(1, 1), TableProof(1, 2), TableProof(1, 3)
    cases = [(a, a, a), (b, a, a), (a, b, a), (a, a, b), (a, b, c)]
    assert [odd_side(*case) for case in cases] == ["", "source", "proof", "destination", "all"]
