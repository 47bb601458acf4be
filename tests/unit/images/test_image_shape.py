"""What keeps a destination's table from holding an image's rows, beyond what a MariaDB shows."""

from dataclasses import replace

import pytest

from consumers.processors.core.apply.shape import StoredColumn, StoredKey, StoredShape, misfits
from schemas.ids import TableId, Ts
from schemas.sink.sql_rows import TableForm, decode_form, encode_form

FORM = TableForm(
    schema="d",
    table="t",
    version=Ts(7),
    columns=("Id", "a", "b"),
    key=("Id",),
    uniques=(("Id",), ("a", "b")),
)


def stored(*uniques: StoredKey, more: tuple[StoredColumn, ...] = ()) -> StoredShape:
    names = (StoredColumn(name="id", needed=True), StoredColumn(name="A"), StoredColumn(name="b"))
    return StoredShape(columns=(*names, *more), uniques=uniques)


@pytest.mark.parametrize(
    ("shape", "wrong"),
    [
        (stored(StoredKey(("ID",)), StoredKey(("b", "a"))), []),
        (stored(StoredKey(("id",)), StoredKey(("a", "b", "id"))), []),
        (stored(StoredKey(("id",)), StoredKey(("a",), whole=False)), []),
        (stored(StoredKey(("id",), whole=False)), []),
        (stored(StoredKey(("id",)), more=(StoredColumn(name="c"),)), []),
        (stored(StoredKey(("id",)), StoredKey(("a",))), ["its unique key of (a)"]),
        (stored(), ["it has no unique key of (Id)"]),
        (stored(StoredKey(("a", "b"))), ["it has no unique key of (Id)"]),
        (stored(StoredKey(("id",)), more=(StoredColumn(name="c", needed=True),)), ["its column `c` has no default"]),
    ],
)
def test_shape_misfits_are_those_that_would_lose_rows(shape: StoredShape, wrong: list[str]) -> None:
    said = list(misfits(FORM, shape))
    assert len(said) == len(wrong)
    assert all(text.startswith(start) for text, start in zip(said, wrong, strict=True))


def test_form_of_an_image_tells_unique_keys_and_one_of_changes_is_as_ever() -> None:
    assert decode_form(encode_form(FORM)) == FORM
    plain = TableForm(schema="d", table="t", version=Ts(7), columns=("Id",), key=("Id",))
    assert encode_form(plain) == b'[2,"d","t",7,["Id"],["Id"]]'
    assert decode_form(b'[2,"d","t",7,["Id"],["Id"]]') == plain


def test_form_whose_rows_go_over_all_there_is_has_the_version_of_one_that_does_not_say_so() -> None:
    plain = TableForm(schema="d", table="t", version=Ts(7), columns=("Id",), key=("Id",))
    for form in (plain, FORM, replace(plain, notes=TableId(5)), replace(plain, key=())):
        said = replace(form, overwrites=True)
        assert decode_form(encode_form(said)) == said
        assert encode_form(said)[:2] == encode_form(form)[:2]
    assert encode_form(replace(plain, overwrites=True)) == b'[2,"d","t",7,["Id"],["Id"],null,0,true]'
