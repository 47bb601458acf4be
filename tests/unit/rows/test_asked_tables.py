"""Tables that others will ask for: those of the same settings and form, as long as somebody has asked lately."""

import random
from dataclasses import replace

import pytest

from schemas.ids import TableId
from schemas.tidb.table import TableVersion
from sorters.core.mount.alike_tables import are_alike
from sorters.core.rows import asked_tables
from sorters.core.rows.asked_tables import AskedTable, AskedTables
from tests.support.topics.random_rows import random_table

FORMS = [random_table(random.Random(1)), random_table(random.Random(2))]


def asked(number: int, form: int = 0, part: bytes = b"") -> AskedTable:
    version: TableVersion = replace(FORMS[form], table=f"t{number}", table_id=TableId(number))
    return AskedTable(version, f"topic-{number}", part)


def test_others_are_those_that_somebody_else_has_asked_for_of_the_same_settings_and_form() -> None:
    mine, theirs, unlike, elsewhere = asked(1), asked(2), asked(3, form=1), asked(4)
    tables = AskedTables()
    tables.note("canal", [mine], 1)
    assert tables.others("canal", [mine], 1) == []
    tables.note("canal", [theirs, unlike], 1)
    tables.note("avro", [elsewhere], 1)
    assert tables.others("canal", [mine], 1) == [theirs]
    assert tables.others("canal", [theirs], 1) == [mine]
    assert tables.others("canal", [unlike], 1) == []


def test_a_table_whose_messages_hold_another_schema_id_is_another_one() -> None:
    first, tables = asked(1, part=b"7"), AskedTables()
    second = AskedTable(first.version, "another", b"8")
    tables.note("avro", [first, second], 1)
    assert tables.others("avro", [first], 1) == [second]


def test_what_nobody_has_asked_for_lately_is_nobodys_and_is_forgotten() -> None:
    mine, theirs, tables = asked(1), asked(2), AskedTables()
    last = 1 + asked_tables.LATELY_CUTS
    tables.note("canal", [theirs], 1)
    tables.note("avro", [asked(3)], 1)
    tables.note("canal", [mine], last)
    assert tables.others("canal", [mine], last) == [theirs]
    tables.note("canal", [mine], last + 1)
    assert tables.others("canal", [mine], last + 1) == []
    tables.note("canal", [mine], 2 * last)
    assert list(tables._noted) == list(tables._forms) == ["canal"]
    assert [each.table for each in tables._noted["canal"].values()] == [mine]
    tables.note("canal", [theirs], 2 * last)
    assert tables.others("canal", [mine], 2 * last) == [theirs]


def test_a_cut_that_has_waited_while_many_newer_ones_ran_has_no_company_and_takes_nobodys() -> None:
    mine, theirs, tables = asked(1), asked(2), AskedTables()
    newest = 2 + asked_tables.LATELY_CUTS
    tables.note("canal", [mine], 1)
    tables.note("canal", [theirs], newest)
    assert tables.others("canal", [mine], 1) == [], "it was forgotten between two calls of its thread"
    tables.note("canal", [theirs], 1)
    tables.note("canal", [mine], newest)
    assert tables.others("canal", [mine], newest) == [theirs], "that an old cut wants it, too, makes it no older"


def test_forms_that_no_table_has_any_more_are_forgotten_and_those_that_are_left_stay_alike() -> None:
    tables, last = AskedTables(), 1 + asked_tables.LATELY_CUTS
    tables.note("canal", [asked(1), asked(2, form=1)], 1)
    mine = asked(3)
    tables.note("canal", [mine], last)
    tables.note("canal", [mine], 2 * last)
    assert len(tables._forms["canal"]) == 1
    theirs = asked(4)
    tables.note("canal", [theirs], 2 * last)
    assert tables.others("canal", [mine], 2 * last) == [theirs]


def test_a_table_is_compared_with_those_of_its_columns_names_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[TableVersion, TableVersion]] = []

    def counted(form: TableVersion, version: TableVersion) -> bool:
        compared.append((form, version))
        return are_alike(form, version)

    monkeypatch.setattr(asked_tables, "are_alike", counted)
    first, *rest = FORMS[0].columns
    unlike = [replace(FORMS[0], columns=(replace(first, name=f"c{number}"), *rest)) for number in range(100)]
    tables = AskedTables()
    tables.note("canal", [AskedTable(version, "t", b"") for version in unlike], 1)
    tables.note("canal", [AskedTable(replace(version, table="t2"), "t", b"") for version in unlike], 1)
    assert len(compared) == 100
