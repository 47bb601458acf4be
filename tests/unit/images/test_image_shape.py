"""What keeps a destination's table from holding an image's rows, beyond what a MariaDB shows."""

import json
from dataclasses import replace

import pytest

from consumers.processors.core.apply.shape import StoredColumn, StoredKey, StoredShape, misfits
from schemas.errors import CorruptDataError
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


PLAIN = TableForm(schema="d", table="t", version=Ts(7), columns=("Id",), key=("Id",))
OVERWRITING = replace(PLAIN, overwrites=True)


@pytest.mark.parametrize(
    ("form", "written", "written_before"),
    [
        (OVERWRITING, b'[7,"d","t",7,["Id"],[["Id"],null,0]]', b'[2,"d","t",7,["Id"],["Id"],null,0,true]'),
        (
            replace(OVERWRITING, uniques=(("Id",), ("a", "b"))),
            b'[7,"d","t",7,["Id"],[["Id"],[["Id"],["a","b"]],0]]',
            b'[3,"d","t",7,["Id"],["Id"],[["Id"],["a","b"]],0,true]',
        ),
        (
            replace(OVERWRITING, columns=()),
            b'[7,"d","t",7,[],[["Id"],null,0]]',
            b'[4,"d","t",7,[],["Id"],null,0,true]',
        ),
        (replace(OVERWRITING, key=()), b'[7,"d","t",7,["Id"],[[],null,0]]', b'[5,"d","t",7,["Id"],[],null,0,true]'),
        (
            replace(OVERWRITING, notes=TableId(5)),
            b'[7,"d","t",7,["Id"],[["Id"],null,5]]',
            b'[6,"d","t",7,["Id"],["Id"],null,5,true]',
        ),
    ],
)
def test_form_whose_rows_go_over_all_there_is_has_a_version_of_its_own(
    form: TableForm, written: bytes, written_before: bytes
) -> None:
    """A topic may hold forms as builds since the release before wrote them: of other versions, going on."""
    assert encode_form(form) == written
    assert decode_form(written) == decode_form(written_before) == form


def test_form_whose_rows_go_over_all_there_is_has_as_many_items_as_the_release_before_unpacks() -> None:
    """So that release refuses it by its version, and says why: "sorter and processors are of one release"."""
    assert len(json.loads(encode_form(OVERWRITING))) == len(json.loads(encode_form(PLAIN))) == 6


@pytest.mark.parametrize(
    "key",
    [
        b'[7,"d","t",7,["Id"],["Id"]]',
        b'[7,"d","t",7,["Id"],[]]',
        b'[7,"d","t",7,["Id"],[["Id"],null,0],null,0,true]',
        b'[8,"d","t",7,["Id"],[["Id"],null,0]]',
        b'[3,"d","t",7,["Id"],["Id"],null,0,true]',
    ],
)
def test_form_that_is_none_is_refused(key: bytes) -> None:
    with pytest.raises(CorruptDataError, match="form of a row message"):
        decode_form(key)
