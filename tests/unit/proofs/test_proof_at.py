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


@pytest.mark.parametrize(("begun_ts", "begun_by"), [(2, "create"), (2, "image"), (50, "image"), (0, "")])
def test_partition_of_which_only_a_later_state_is_left_leaves_no_proof(begun_ts: int, begun_by: str) -> None:
    """After the sorter's restart: a state of a table that changed above, and one of what has stood still since 10."""
    begun = {"begun_ts": Ts(begun_ts), "begun_by": begun_by}
    changed = replace(FIRST, after_ts=Ts(55), ts=Ts(60), proof=TableProof(5, 10), **begun)  # type: ignore[arg-type]
    quiet = replace(FIRST, table_id=TableId(2), begun_ts=Ts(2), begun_by="create")
    for states in ([changed, quiet], [changed]):
        answer = proof_at(states, "s.t", Ts(40), Ts(100))
        assert answer == ProofAnswer(reason="of this ts no state is left any more"), "and waiting brings none"
    assert proof_at([changed, quiet], "s.t", Ts(57), Ts(100)).is_between
    assert proof_at([changed, quiet], "s.t", Ts(60), Ts(100)).proof == TableProof(7, 9)


@pytest.mark.parametrize("begun_by", ["create", "truncate", "partition"])
def test_partition_that_was_made_above_the_ts_was_not_there_yet(begun_by: str) -> None:
    made = replace(SECOND, table_id=TableId(2), begun_ts=Ts(17), begun_by=begun_by)
    assert proof_at([FIRST, made], "s.t", Ts(16), Ts(40)) == PROVEN
    assert proof_at([FIRST, made], "s.t", Ts(17), Ts(40)).proof is None
    within_its_cut = replace(made, begun_ts=Ts(25))
    assert proof_at([FIRST, within_its_cut], "s.t", Ts(24), Ts(40)) == PROVEN


def test_table_goes_by_the_name_that_it_has_at_the_ts() -> None:
    renamed = replace(SECOND, table="s.new")
    assert proof_at([FIRST, renamed], "s.t", Ts(15), Ts(40)) == PROVEN
    assert proof_at([FIRST, renamed], "s.new", Ts(30), Ts(40)).proof == TableProof(3, 7)
    assert proof_at([FIRST, renamed], "s.t", Ts(30), Ts(40)).reason == "the changefeed carries no proof of it"


def test_odd_side_is_the_one_that_no_other_is_like() -> None:
    a, b, c = TableProof(1, 1), TableProof(1, 2), TableProof(1, 3)
    cases = [(a, a, a), (b, a, a), (a, b, a), (a, a, b), (a, b, c)]
    assert [odd_side(*case) for case in cases] == ["", "source", "proof", "destination", "all"]


def test_odd_side_of_sides_that_differ_by_their_sums_is_none_that_a_proof_could_tell() -> None:
    four, eight, proof = TableProof(4, 0, 6), TableProof(4, 0, 8), TableProof(4, 0)
    cases = [(four, proof, four), (four, proof, eight), (four, TableProof(4, 1), four), (four, TableProof(4, 1), eight)]
    assert [odd_side(*case) for case in cases] == ["", "", "proof", "all"]
    assert odd_side(four, proof, TableProof(3, 5, 8)) == "destination"
