"""Binary JSON to text for many rows."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from schemas.errors import BusError, CorruptDataError
from schemas.tidb.binary_json import json_text
from sorters.core.columnar.spans import Spans

Corrupt = Callable[[int, str], BusError]
"""Makes the error for a row that does not decode."""


def json_texts(spans: Spans, corrupt: Corrupt) -> Any:
    """Return the texts as a ``pyarrow.BinaryArray``; each distinct value is read once.

    Raises:
        CorruptDataError: a value does not decode (made by ``corrupt``).
    """
    words = spans.to_arrow().dictionary_encode()
    texts = []
    for place, data in enumerate(words.dictionary.to_pylist()):
        try:
            texts.append(json_text(data).encode("utf-8", "surrogateescape"))
        except CorruptDataError as error:
            raise corrupt(words.indices.to_pylist().index(place), error.message) from error
    return pa.array(texts, pa.binary()).take(words.indices)
