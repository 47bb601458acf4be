"""Names as Avro allows them, which those who write and those who read its messages agree on."""

import re


def sanitize_name(name: str) -> str:
    """Return a legal Avro name: ASCII letters, digits and ``_``, no digit first.

    >>> sanitize_name("1st-name")
    '_1st_name'
    """
    if not name:
        return name
    clean = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return f"_{clean}" if clean[0].isdigit() else clean
