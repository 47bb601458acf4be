"""From a topic expression and a table to the topic's name."""

import re

from schemas.config.sink.sink_uri import TOPIC_LENGTH_MAX
from schemas.config.sink.topic_rule import is_topic_name

_ILLEGAL = re.compile(r"[^A-Za-z0-9._\-]")
_PLACEHOLDER = re.compile(r"\{(schema|table)\}")


def substitute(expression: str, schema: str, table: str) -> str:
    """Return the topic of a table; characters that Kafka does not allow become ``_``, and it is cut to 249.

    Each character gives one ``_``, however many bytes it has: ``表`` too.

    >>> substitute("prefix_{schema}_middle_{table}_suffix", "hello", "world!")
    'prefix_hello_middle_world__suffix'
    """
    if is_topic_name(expression):
        return expression
    names = {"schema": _ILLEGAL.sub("_", schema), "table": _ILLEGAL.sub("_", table)}
    topic = _PLACEHOLDER.sub(lambda match: names[match[1]], expression)[:TOPIC_LENGTH_MAX]
    return {".": "_", "..": "__"}.get(topic, topic)
