"""JSON that TiDB wrote of its schemas, read member by member: what is not of its kind is an error, and nobody's guess.

Go writes an empty list as ``null`` or leaves it out, and a name as a CIStr: its spelling ``O`` beside a folded ``L``.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

JsonObject: TypeAlias = Mapping[str, object]


def object_in(raw: JsonObject, key: str) -> JsonObject:
    """Return a member that is an object.

    Raises:
        KeyError, TypeError: there is none.
    """
    return _object(raw[key], key)


def optional_object_in(raw: JsonObject, key: str) -> JsonObject | None:
    """Return a member that is an object; None: it is null or absent.

    Raises:
        TypeError: it is something else.
    """
    value = raw.get(key)
    return None if value is None else _object(value, key)


def objects_in(raw: JsonObject, key: str) -> Sequence[JsonObject]:
    """Return a member that is a list of objects.

    Raises:
        KeyError, TypeError: there is none.
    """
    return [_object(item, key) for item in _items(raw[key], key)]


def optional_objects_in(raw: JsonObject, key: str) -> Sequence[JsonObject]:
    """Return a member that is a list of objects; none where it is null or absent.

    Raises:
        TypeError: it is something else.
    """
    return [_object(item, key) for item in _optional_items(raw, key)]


def texts_in(raw: JsonObject, key: str) -> tuple[str, ...]:
    """Return a member that is a list of texts; none where it is null or absent.

    Raises:
        TypeError: it is something else.
    """
    return tuple(_text(item, key) for item in _optional_items(raw, key))


def optional_lists_in(raw: JsonObject, key: str) -> Sequence[Sequence[object]]:
    """Return a member that is a list of lists; none where it is null or absent.

    Raises:
        TypeError: it is something else.
    """
    return [_items(item, key) for item in _optional_items(raw, key)]


def names_in(raw: JsonObject, key: str) -> tuple[str, ...]:
    """Return a member that is a list of CIStrs; none where it is null or absent.

    Raises:
        TypeError: it is something else.
    """
    return tuple(map(ci_name, _optional_items(raw, key)))


def number_in(raw: JsonObject, key: str, absent: int | None = None) -> int:
    """Return a member that is a whole number; ``absent`` where it is null or absent, if that is given.

    Raises:
        KeyError, TypeError: there is none.
    """
    value = raw[key] if absent is None else raw.get(key)
    if value is None and absent is not None:
        return absent
    return whole_number(value, key)


def whole_number(value: object, what: str) -> int:
    """Return a value that is a whole number; ``what`` names it in the error.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(value, int):
        raise TypeError(f"{what} is {str(value)[:40]!r}, and no whole number")
    return int(value)


def text_in(raw: JsonObject, key: str) -> str:
    """Return a member that is a text; '' where it is null or absent.

    Raises:
        TypeError: it is something else.
    """
    value = raw.get(key)
    return "" if value is None else _text(value, key)


def ci_name(name: object) -> str:
    """Return the original spelling of a CIStr; very old clusters wrote a plain string."""
    return str(name["O"]) if isinstance(name, Mapping) else str(name)


def _items(value: object, key: str) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"{key} is {str(value)[:40]!r}, and no list")
    return value


def _optional_items(raw: JsonObject, key: str) -> list[object]:
    value = raw.get(key)
    return [] if value is None else _items(value, key)


def _object(value: object, key: str) -> JsonObject:
    if not isinstance(value, Mapping):
        raise TypeError(f"{key} is {str(value)[:40]!r}, and no object")
    return value


def _text(value: object, key: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{key} is {str(value)[:40]!r}, and no text")
    return value
