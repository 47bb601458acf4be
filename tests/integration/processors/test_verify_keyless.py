"""``tidebus verify`` of tables without a key: equal rows stand there, and go out of a XOR of hashes two by two."""

from collections.abc import Sequence

import pytest

from compose.stack.mariadb import LocalMariaDb
from consumers.verify.core.differences import KeyDifference
from consumers.verify.core.outcome import TableOutcome, Verdict, as_json, lines
from consumers.verify.core.proof_at import ProofAnswer
from schemas.state_proof.row_text import TableProof, row_hash
from tests.support.database.apply import run_sql
from tests.support.database.apply_tables import feed
from tests.support.database.mariadb import mariadb
from tests.support.database.verify import MariaDbSource, applied, pair, table_check, upstream

__all__ = ["feed", "mariadb", "upstream"]


def test_verify_of_a_table_without_a_key_names_a_repeated_row_by_its_values(
    mariadb: LocalMariaDb, feed: str, upstream: MariaDbSource
) -> None:
    applied(mariadb, feed)
    for schema in ("u", "d"):
        run_sql(mariadb, f"CREATE TABLE {schema}.h (n INT, s VARCHAR(9))")
        run_sql(mariadb, f"INSERT INTO {schema}.h VALUES (1, 'p'), (2, NULL), (1, 'p')")
    check = table_check(upstream, feed)
    assert check.check(pair("h")).verdict is Verdict.SAME
    run_sql(mariadb, "INSERT INTO d.h VALUES (2, NULL), (2, NULL)")  # the XOR is as before
    outcome = check.check(pair("h"))
    assert outcome.source_proof.xor == outcome.destination_proof.xor
    assert outcome.differences == (KeyDifference(("2", None), "repeated"),)


PAIRS, OTHERS = "(1, 'p'), (1, 'p'), (2, NULL), (2, NULL)", "(1, 'p'), (1, 'p'), (1, 'p'), (1, 'p')"


def checked(
    mariadb: LocalMariaDb, feed: str, upstream: MariaDbSource, here: str, there: str, proof: TableProof | None = None
) -> TableOutcome:
    """Return what is said of two tables without a key that hold such rows."""
    applied(mariadb, feed)
    for schema, held in (("u", here), ("d", there)):
        run_sql(mariadb, f"CREATE TABLE {schema}.h (n INT, s VARCHAR(9))")
        run_sql(mariadb, *([f"INSERT INTO {schema}.h VALUES {held}"] if held else []))
    proofs = None if proof is None else lambda *_: ProofAnswer(proof=proof, columns=("n", "s"))
    return table_check(upstream, feed, proofs=proofs).check(pair("h"))


@pytest.mark.parametrize(
    ("here", "there", "differences"),
    [
        (PAIRS, PAIRS, []),
        ("", "", []),
        (PAIRS, OTHERS, [(("1", "p"), "repeated"), (("2", None), "missing")]),
        ("(1, 'p'), (1, 'p')", "(3, 'q'), (3, 'q')", [(("1", "p"), "missing"), (("3", "q"), "extra")]),
    ],
)
def test_verify_of_rows_that_stand_there_an_even_number_of_times_names_those_that_differ(
    mariadb: LocalMariaDb,
    feed: str,
    upstream: MariaDbSource,
    here: str,
    there: str,
    differences: Sequence[tuple[tuple[str | None, ...], str]],
) -> None:
    outcome = checked(mariadb, feed, upstream, here, there)
    assert [(each.key, each.what) for each in outcome.differences] == differences
    assert outcome.verdict is (Verdict.DIFFERENT if differences else Verdict.SAME)
    assert (outcome.source_proof.rows, outcome.source_proof.xor) == (outcome.destination_proof.rows, 0)


def test_verify_of_a_table_without_a_key_says_the_sum_that_a_xor_has_not(
    mariadb: LocalMariaDb, feed: str, upstream: MariaDbSource
) -> None:
    outcome = checked(mariadb, feed, upstream, PAIRS, OTHERS)
    first, second = row_hash([b"1", b"p"]), row_hash([b"2", None])
    said = as_json(outcome)
    assert said["source"] == {"rows": 4, "xor": "0" * 16, "sum": f"{(2 * first + 2 * second) % 2**64:016x}"}
    assert said["destination_proof"] == {"rows": 4, "xor": "0" * 16, "sum": f"{4 * first % 2**64:016x}"}
    keyed = as_json(table_check(upstream, feed).check(pair("a")))["source"]
    assert isinstance(keyed, dict) and sorted(keyed) == ["rows", "xor"]


def test_state_proof_of_a_table_without_a_key_is_said_with_what_it_does_not_see(
    mariadb: LocalMariaDb, feed: str, upstream: MariaDbSource
) -> None:
    same = checked(mariadb, feed, upstream, PAIRS, PAIRS, TableProof(4, 0))
    unseen = "as far as it sees: rows that a table without a key has an even number of times are not in its XOR"
    assert (same.verdict, same.odd, lines(same)[1]) == (Verdict.SAME, "", f"  the state proof says the same, {unseen}")
    run_sql(mariadb, "DELETE FROM d.h WHERE n = 2", "INSERT INTO d.h VALUES (1, 'p'), (1, 'p')")
    for proof, odd in ((TableProof(4, 0), ""), (TableProof(5, 7), "all")):
        answer = ProofAnswer(proof=proof, columns=("n", "s"))
        outcome = table_check(upstream, feed, proofs=lambda *_, answer=answer: answer).check(pair("h"))
        assert (outcome.verdict, outcome.odd, len(outcome.differences)) == (Verdict.DIFFERENT, odd, 2)
