"""Whole numbers as texts of people hold them: Python refuses to read one of thousands of digits."""

import re
from typing import Final

DIGITS_MAX: Final = 40
"""Longer ones are no number of TiCDC's."""
_WHOLE = re.compile(rf"[+-]?[0-9]{{1,{DIGITS_MAX}}}")


def whole_number(text: str, *, may_have_plus: bool = False) -> int | None:
    """Return a whole number, with a minus or none; None: the text is none, or has more than :data:`DIGITS_MAX` digits.

    >>> whole_number("-5"), whole_number("+5"), whole_number("-+5", may_have_plus=True)
    (-5, None, None)
    """
    if not _WHOLE.fullmatch(text) or (text[0] == "+" and not may_have_plus):
        return None
    return int(text)
