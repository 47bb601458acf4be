"""Who reads a setting, and which test names it: what stands behind a mark that says "same"."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from schemas.config.parse.section import fields_by_key
from schemas.config.settings import ChangefeedFile
from tests.parity.rows import Mark, Row, Verdict
from tests.support.sources.repository import DEFINITIONS, PACKAGES, ROOT, sources, text_of, tree_of

NOT_READERS: Final = frozenset({"rules.py", "notes.py", "not_yet.py", "adjusted.py", "changefeed.py"})
"""Of ``schemas/config``: they check and explain settings, and do nothing by them."""


def field_of(key: str) -> str | None:
    """Return the dataclass field of a key of the changefeed file; None: we have no such key.

    >>> field_of("sink.dispatchers[].target-schema")
    'target_schema'
    """
    kind: Any = ChangefeedFile
    name = None
    for part in key.replace("[]", "").split("."):
        known = fields_by_key(kind) if isinstance(kind, type) and hasattr(kind, "__dataclass_fields__") else {}
        if part not in known:
            return None
        field, hint = known[part]
        name, kind = field.name, _inner(hint)
    return name


def _inner(hint: Any) -> Any:
    """Return what an optional or a tuple holds."""
    if get_origin(hint) in (None, Literal):
        return hint
    kinds = [kind for kind in get_args(hint) if kind not in (type(None), ...)]
    return _inner(kinds[0]) if kinds else hint


def is_read(key: str) -> bool:
    """Tell whether the product reads a key: the field, also by ``getattr``, or the key in a table."""
    field, (attributes, patterns, texts) = field_of(key), _loads()
    if field is None:
        return False
    return (
        field in attributes or any(re.fullmatch(pattern, field) for pattern in patterns) or key.split(".")[-1] in texts
    )


@cache
def _loads() -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Return what the product loads: attributes, patterns of names in ``getattr``, keys that tables are asked for."""
    attributes, patterns, texts = set[str](), set[str](), set[str]()
    for source in sources():
        path = source.relative_to(ROOT)
        if path.parts[0] not in PACKAGES or (path.parts[:2] == ("schemas", "config") and path.name in NOT_READERS):
            continue
        for node in ast.walk(tree_of(source)):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                attributes.add(node.attr)
            elif isinstance(node, ast.Call) and node.args:
                patterns |= _named_by_getattr(node)
                texts |= _asked_of_table(node)
    return frozenset(attributes), frozenset(patterns), frozenset(texts)


def _named_by_getattr(call: ast.Call) -> set[str]:
    """Return the pattern of a name in ``getattr(value, f"…")``."""
    if not (isinstance(call.func, ast.Name) and call.func.id == "getattr" and isinstance(call.args[1], ast.JoinedStr)):
        return set()
    parts = call.args[1].values
    pattern = "".join(re.escape(str(part.value)) if isinstance(part, ast.Constant) else r"\w+" for part in parts)
    return {pattern} if pattern != r"\w+" else set()


def _asked_of_table(call: ast.Call) -> set[str]:
    """Return the key of ``table.get("key", …)``."""
    asked = isinstance(call.func, ast.Attribute) and call.func.attr == "get" and isinstance(call.args[0], ast.Constant)
    return {str(call.args[0].value)} if asked and isinstance(call.args[0], ast.Constant) else set()


def names_it(test: str, *names: str) -> bool:
    """Tell whether a test function, ``path::function``, holds one of the names; ``path::function:word``: that word.

    What the function holds is its own text and that of its module's fixtures, constants and helpers that it uses.
    """
    path, _, rest = test.partition("::")
    function, _, word = rest.partition(":")
    file: Path = ROOT / path
    if not (file.name.startswith("test_") and function.startswith("test_") and file.is_file()):
        return False
    held = "\n".join(_held_by(file, function)).replace("\\n", "\n")
    return any(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", held) for name in ([word] if word else names))


@cache
def _held_by(file: Path, function: str) -> tuple[str, ...]:
    """Return the texts of a function and, in turn, of what its module defines and it names; none: there is no such."""
    defined, held, left = _definitions(file), dict[str, str](), [function]
    while left:
        name = left.pop()
        if name in defined and name not in held:
            node = defined[name]
            held[name] = _text(file, node)
            left += _named_in(node)
    return tuple(held.values())


@cache
def _definitions(file: Path) -> dict[str, ast.stmt]:
    """Return what a module defines at its top, by name."""
    definitions: dict[str, ast.stmt] = {}
    for node in tree_of(file).body:
        if isinstance(node, DEFINITIONS):
            definitions[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            definitions |= {
                part.id: node for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)
            }
    return definitions


def _text(file: Path, node: ast.stmt) -> str:
    decorators = node.decorator_list if isinstance(node, DEFINITIONS) else []
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    return "\n".join(text_of(file).splitlines()[first - 1 : node.end_lineno])


def _named_in(node: ast.stmt) -> list[str]:
    """Return the names that a definition loads, its parameters, which may be fixtures, and those of `usefixtures`."""
    return [
        part.id if isinstance(part, ast.Name) else part.arg if isinstance(part, ast.arg) else str(part.value)
        for part in ast.walk(node)
        if isinstance(part, ast.Name | ast.arg) or (isinstance(part, ast.Constant) and isinstance(part.value, str))
    ]


def shown(row: Row, *names: str) -> Verdict:
    """Return the verdict of a thing that works here: its test must name it."""
    if not names_it(row.test, *names):
        return Verdict(Mark.SILENT, f"no test names it (`{row.test}`)")
    path, _, rest = row.test.partition("::")
    where = f"`{rest.partition(':')[0]}` in `{path}`"
    return Verdict(Mark.DIFFERS if row.how else Mark.SAME, f"{row.how} ({where})" if row.how else where)
