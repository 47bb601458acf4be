"""From a table of the changefeed file to a frozen dataclass, and back.

A section is a keyword-only frozen dataclass; a field is a setting. Its key is the field's name with dashes, unless
:func:`setting` gives another (fields carry the unit in their names, keys are TiCDC's). Its annotation is the type that
is checked; :func:`setting` may add a limit. There is one pass: what it lets through needs no second check.
"""

import dataclasses
import difflib
import sys
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from schemas.config.parse.digits import DIGITS_MAX, whole_number
from schemas.config.parse.duration import Seconds, parse_duration
from schemas.config.parse.origin import Origin, Path, UriText
from schemas.config.parse.secret import Secret

Section = TypeVar("Section")
Check = Callable[[Any], str | None]
"""Return what is allowed if the value is not, else None."""
Fields = Mapping[str, tuple[dataclasses.Field[Any], Any]]

_FIELDS: dict[type[Any], Fields] = {}
"""By section, once they were asked for: annotations are slow to read."""

_BOOLS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
"""Go's ``strconv.ParseBool``, in any case."""
INT64_MAX = 2**63 - 1
_INT64_MIN, _UINT64_MAX = -(2**63), 2**64 - 1
"""Every whole number of TiCDC's is in one of Go's types of 64 bits."""


def setting(default: Any = dataclasses.MISSING, *, key: str | None = None, check: Check | None = None) -> Any:
    """Declare a field with a key of its own or a limit; without default the key must be given."""
    return dataclasses.field(default=default, metadata={"key": key, "check": check})


def section(kind: type[Any], *, key: str | None = None) -> Any:
    """Declare a field that is a table; absent, it holds its own defaults."""
    return dataclasses.field(default_factory=kind, metadata={"key": key})


def between(low: float, high: float) -> Check:
    """Limit a number, both ends allowed."""
    return lambda value: None if value is None or low <= value <= high else f"must be from {low} to {high}"


def at_least(low: float) -> Check:
    """Limit a number from below; ``low`` itself is allowed."""
    return lambda value: None if value is None or value >= low else f"must be at least {low}"


def shortest_duration(text: str) -> Check:
    """Limit a duration from below."""
    low = parse_duration(text)
    return lambda value: None if value >= low else f"must be at least {text}"


def each(check: Check) -> Check:
    """Apply a limit to all items of a list; what is said names the item."""
    return lambda values: next(
        (f"{reason}, got {_show(value)} as item {i}" for i, value in enumerate(values) if (reason := check(value))),
        None,
    )


def fields_by_key(kind: type[Any]) -> Fields:
    """Return the settings of a section: key to (field, type)."""
    known = _FIELDS.get(kind)
    if known is None:
        hints = get_type_hints(kind)
        known = _FIELDS[kind] = {
            field.metadata.get("key") or field.name.replace("_", "-"): (field, hints[field.name])
            for field in dataclasses.fields(kind)
            if field.init
        }
    return known


def read_section(kind: type[Section], table: object, path: Path, origin: Origin) -> Section:
    """Build a section from its table.

    Raises:
        ConfigError: an unknown key, a wrong type, a value out of its limits, or a key that must be given is missing.
    """
    if not isinstance(table, Mapping):
        raise origin.error(path, f"{_name(path)} must be a table, got {_show(table)}")
    fields = fields_by_key(kind)
    values: dict[str, object] = {}
    for key, raw in table.items():
        here = (*path, str(key))
        if key not in fields:
            raise origin.error(here, unknown_key(str(key), fields, f"in {_name(path)}"))
        field, hint = fields[key]
        value = _read(hint, raw, here, origin)
        check: Check | None = field.metadata.get("check")
        reason = check(value) if check else None
        if reason:
            shown = "" if _is_secret(hint) or isinstance(value, tuple) else f", got {_show(raw)}"
            raise origin.error(here, f"`{key}` {reason}{shown}")
        values[field.name] = value
    for key, (field, _) in fields.items():
        if field.name not in values and _no_default(field):
            raise origin.error(path, f"`{key}` is missing in {_name(path)}")
    return kind(**values)


def unknown_key(key: str, known: Mapping[str, object], where: str) -> str:
    """Return the text of an unknown-key error: the key, where, and the likeliest right ones."""
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean `{near[0]}`?" if near else "known here: " + ", ".join(sorted(known))
    return f"unknown key `{key}` {where}; {hint}"


def _no_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return a setting's default; ``dataclasses.MISSING`` if it must be given."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def is_section(value: object) -> bool:
    """Tell whether a setting's value is a table of settings."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type | Secret)


def _read(hint: Any, raw: object, path: Path, origin: Origin) -> Any:
    """Check one value against its annotation, and convert it."""
    kind = get_origin(hint)
    if kind in (Union, UnionType):
        hint = next(arg for arg in get_args(hint) if arg is not NoneType)
        return _read(hint, raw, path, origin)
    if kind is Literal:
        return _read_word(get_args(hint), raw, path, origin)
    if kind is tuple:
        if isinstance(raw, UriText):
            raw = [UriText(item) for item in raw.split(",") if item]
        if not isinstance(raw, list | tuple):
            raise origin.error(path, f"{_name(path)} must be a list, got {_show(raw)}")
        return tuple(_read(get_args(hint)[0], item, (*path, i), origin) for i, item in enumerate(raw))
    if isinstance(hint, type) and issubclass(hint, Secret):
        if not isinstance(raw, str):
            raise origin.error(path, f"{_name(path)} must be a string, got {_kind(raw)}")
        return hint(str(raw))
    if dataclasses.is_dataclass(hint):
        assert isinstance(hint, type)
        return read_section(hint, raw, path, origin)
    return _read_scalar(hint, raw, path, origin)


def _read_scalar(hint: Any, raw: object, path: Path, origin: Origin) -> Any:
    if hint is bool:
        if isinstance(raw, UriText) and raw.lower() in _BOOLS:
            return _BOOLS[raw.lower()]
        if not isinstance(raw, bool):
            raise origin.error(path, f"{_name(path)} must be true or false, got {_show(raw)}")
        return raw
    if hint is int:
        return _read_whole(raw, path, origin)
    if hint is float:
        if isinstance(raw, bool) or not isinstance(raw, int | float):
            raise origin.error(path, f"{_name(path)} must be a number, got {_show(raw)}")
        if not -sys.float_info.max <= raw <= sys.float_info.max:
            raise origin.error(path, f"{_name(path)} must be a finite number, got {_show(raw)}")
        return float(raw)
    if not isinstance(raw, str):
        raise origin.error(path, f"{_name(path)} must be {_expected(hint)}, got {_show(raw)}")
    if hint is Seconds:
        try:
            return parse_duration(raw)
        except ValueError:
            raise origin.error(path, f"{_name(path)} must be {_expected(hint)}, got {_show(raw)}") from None
    return str(raw)


def _read_whole(raw: object, path: Path, origin: Origin) -> int:
    if isinstance(raw, UriText) and (number := whole_number(raw, may_have_plus=True)) is not None:
        raw = number
    if isinstance(raw, bool) or not isinstance(raw, int):
        raise origin.error(path, f"{_name(path)} must be a whole number, got {_show(raw)}")
    if not _INT64_MIN <= raw <= _UINT64_MAX:
        raise origin.error(path, f"{_name(path)} must be a whole number of 64 bits, got {_show(raw)}")
    return raw


def _read_word(words: tuple[Any, ...], raw: object, path: Path, origin: Origin) -> Any:
    if isinstance(raw, UriText) and isinstance(words[0], int) and (number := whole_number(raw)) is not None:
        raw = number
    wanted = raw.lower() if isinstance(raw, str) else raw
    for word in words:
        if type(wanted) is type(word) and wanted == (word.lower() if isinstance(word, str) else word):
            return word
    allowed = ", ".join(f'"{word}"' if isinstance(word, str) else str(word) for word in words)
    raise origin.error(path, f"{_name(path)} must be one of {allowed}, got {_show(raw)}")


def _expected(hint: Any) -> str:
    return 'a duration such as "10s" or "1h30m"' if hint is Seconds else "a string"


def _is_secret(hint: Any) -> bool:
    return any(isinstance(kind, type) and issubclass(kind, Secret) for kind in (hint, *get_args(hint)))


def _name(path: Path) -> str:
    if not path:
        return "the changefeed file"
    name = next(part for part in reversed(path) if isinstance(part, str))
    return f"`{name}`" if isinstance(path[-1], str) else f"item {path[-1]} of `{name}`"


def _kind(raw: object) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", UriText: "a string"}
    names |= {list: "a list", dict: "a table", NoneType: "null"}
    return names.get(type(raw), f"a {type(raw).__name__}")


def _show(raw: object) -> str:
    """Show a plain value; of tables and lists only that they are one, as they may hold secrets."""
    if isinstance(raw, str):
        return f'"{raw[:80]}"'
    if isinstance(raw, int) and not isinstance(raw, bool) and abs(raw) >= 10**DIGITS_MAX:
        return f"a number of more than {DIGITS_MAX} digits"
    return str(raw).lower() if isinstance(raw, bool) else str(raw) if isinstance(raw, int | float) else _kind(raw)
