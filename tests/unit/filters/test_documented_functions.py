"""The page of filters names every function of value expressions."""

import re
from pathlib import Path

from schemas.config.filter.expression_functions import FUNCTIONS, NEVER, SYNONYMS

PAGE = Path(__file__).resolve().parents[3] / "docs/formats/dispatchers-and-filters.md"


def test_page_of_filters_names_every_function_and_no_other() -> None:
    text = PAGE.read_text().partition("#### Value expressions")[2].partition("\n### ")[0]
    listed = set(re.findall(r"[A-Z][A-Z0-9_]+", text.partition("the functions ")[2].partition(". Texts compare")[0]))
    assert listed == {*FUNCTIONS, *SYNONYMS}
    assert not listed & NEVER
