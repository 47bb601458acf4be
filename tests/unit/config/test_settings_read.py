"""No setting is taken and then read by nothing without a word: it is noted, refused, or read by another name."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from schemas.config.not_yet import SETTINGS, WORDS
from schemas.config.notes import NO_EFFECT
from schemas.config.parse.section import fields_by_key
from schemas.config.settings import ChangefeedFile
from schemas.config.sink.sink import DispatchRule, EventFilterRule

ROOT = Path(__file__).resolve().parents[3]
PRODUCT = ("schemas", "edges", "producers", "sorters", "consumers", "compose")
ITEMS: dict[str, type[Any]] = {"filter.event-filters": EventFilterRule, "sink.dispatchers": DispatchRule}
BY_ANOTHER_NAME = {
    "consistent": "notes say that the raw log stands in for redo logs",
    "synced-status": "consumers/control/api/bodies.py reads it as it was stored",
    "filter.event-filters[].ignore-*-value-expr": "sorters/core/filter/row_conditions.py makes their names",
    "sink.send-all-bootstrap-at-start": "notes say that schemas are always sent at the start",
}


def settings(section: type[Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the key of each setting and the name of its field."""
    for key, (field, hint) in fields_by_key(section).items():
        path = f"{prefix}{key}"
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            yield from settings(hint, f"{path}.")
        else:
            yield path, field.name
        if path in ITEMS:
            yield from settings(ITEMS[path], f"{path}[].")


def is_said(key: str) -> bool:
    known = [*NO_EFFECT, *SETTINGS, *WORDS, *BY_ANOTHER_NAME]
    return any(re.fullmatch(re.escape(name).replace(r"\*", ".*") + r"(\..*)?", key) for name in known)


def test_every_setting_is_read_or_said_to_be_without_effect() -> None:
    text = "\n".join(path.read_text() for name in PRODUCT for path in (ROOT / name).rglob("*.py"))
    read = set(re.findall(r"\.(\w+)\b", text))
    listed = dict(settings(ChangefeedFile))
    assert len(listed) > 150 and "sink.kafka-config.write-timeout" in listed
    assert [key for key, field in listed.items() if field not in read and not is_said(key)] == []
