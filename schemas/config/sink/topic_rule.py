"""What a topic expression may look like: ``[prefix]{schema}[middle{table}][suffix]``."""

import re

_NAME = re.compile(r"[A-Za-z0-9._\-]+")
_EXPRESSION = re.compile(r"[A-Za-z0-9._\-]*(\{schema\})?([A-Za-z0-9._\-]*\{table\})?[A-Za-z0-9._\-]*")
_PER_TABLE = re.compile(r"[A-Za-z0-9._\-]*\{schema\}[A-Za-z0-9._\-]*\{table\}[A-Za-z0-9._\-]*")


def is_topic_name(topic: str) -> bool:
    """Tell whether it is a topic as it stands, without placeholders; allowed for every protocol."""
    return bool(_NAME.fullmatch(topic))


def topic_expression_fault(expression: str, *, needs_table: bool) -> str | None:
    """Return why an expression is refused, or None.

    ``needs_table``: every table must get a topic of its own (avro: a topic is a subject of the schema registry).
    """
    if is_topic_name(expression):
        return None if expression not in (".", "..") else f"`{expression}` is no topic"
    if not _EXPRESSION.fullmatch(expression):
        return (
            f"topic expression `{expression}` is illegal: allowed are letters, digits, `.`, `_`, `-`, "
            "and {schema} and {table}, each once at most and in this order"
        )
    if needs_table and not _PER_TABLE.fullmatch(expression):
        return f"topic expression `{expression}` must hold {{schema}}, then {{table}}: avro needs a topic per table"
    return None
