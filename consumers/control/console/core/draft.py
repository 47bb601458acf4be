"""A changefeed that is being written: fields of a form laid into the file's text, and read out of it again.

The text is what counts. A field changes its own key alone; comments, order and all other keys stay as they were typed.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Table

from schemas.config.changefeed import parse_changefeed_text
from schemas.errors import ConfigError


@dataclass(frozen=True, slots=True)
class FormField:
    """A field of the form, and its key in the file."""

    name: str
    path: tuple[str, ...]
    kind: type
    default: Any
    """Of this value the file says nothing, unless it does already."""


FIELDS: Final = (
    FormField("rules", ("filter", "rules"), list, ["*.*"]),
    FormField("case_sensitive", ("case-sensitive",), bool, False),
    FormField("force_replicate", ("force-replicate",), bool, False),
    FormField("protocol", ("sink", "protocol"), str, ""),
)


def form_of(text: str) -> dict[str, object]:
    """Return the form's fields as a file's text has them.

    Raises:
        ConfigError: no TOML; the fields name the line.
    """
    table, _ = parse_changefeed_text(text)
    return {field.name: _value(table, field) for field in FIELDS}


def laid_in(text: str, form: Mapping[str, object]) -> str:
    """Return a file's text with the form's fields in it; fields that the form does not name stay.

    Raises:
        ConfigError: the text is no TOML, or a field is of another type.
    """
    before = form_of(text)
    try:
        document = tomlkit.parse(text)
    except TOMLKitError as error:
        raise ConfigError(f"changefeed file is no TOML: {error}") from None
    for field in FIELDS:
        value = form.get(field.name, before[field.name])
        is_texts = not isinstance(value, list) or all(isinstance(item, str) for item in value)
        if not (isinstance(value, field.kind) and is_texts):
            raise ConfigError("the form's field has another type", key=".".join(field.path), got=type(value).__name__)
        if value != before[field.name]:
            _lay(document, field, value)
    written = tomlkit.dumps(document)
    tomllib.loads(written)
    return written


def _value(table: Mapping[str, object], field: FormField) -> Any:
    value: Any = table
    for key in field.path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, field.kind) else field.default


def _lay(document: tomlkit.TOMLDocument, field: FormField, value: object) -> None:
    *folders, key = field.path
    table: Any = document
    for folder in folders:
        if folder not in table:
            table[folder] = tomlkit.table()
        table = table[folder]
        if not isinstance(table, Table | dict):
            raise ConfigError(f"`{folder}` must be a table", key=folder)
    if value == field.default:
        table.pop(key, None)
    else:
        table[key] = value
