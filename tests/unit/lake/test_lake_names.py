"""The text of a lake table's name, in errors, logs and explain."""

from itertools import product

from sorters.run.lake.names import LakeName


def test_lake_name_without_dots_is_its_parts_with_dots_between() -> None:
    assert str(LakeName(("bank", "shop"), "orders")) == "bank.shop.orders"


def test_lake_name_whose_part_has_a_dot_or_backquote_quotes_that_part() -> None:
    assert str(LakeName(("shop.eu",), "orders")) == "`shop.eu`.orders"
    assert str(LakeName(("s",), "t`.1")) == "s.`t``.1`"


def test_lake_names_of_all_short_parts_have_a_text_each() -> None:
    parts = ["".join(chars) for length in (1, 2) for chars in product("a.`", repeat=length)]
    names = [LakeName(above, part) for depth in (0, 1, 2) for above in product(parts, repeat=depth) for part in parts]
    assert len({str(name) for name in names}) == len(names) == 12 + 12**2 + 12**3
