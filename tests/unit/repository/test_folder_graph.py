"""No two folders of code need each other, be it over several: each can be read after those that it stands on."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sources.repository import PACKAGES, ROOT, tree_of


def imported(file: Path) -> Iterator[str]:
    """Return the full names that a file imports."""
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def folder_of(name: str) -> str | None:
    """Return the folder of the module that a full name is, or is in; None: it is not ours."""
    parts = name.split(".")
    if parts[0] not in PACKAGES:
        return None
    while parts:
        path = ROOT.joinpath(*parts)
        if path.with_suffix(".py").is_file():
            return ".".join(parts[:-1])
        if (path / "__init__.py").is_file():
            return ".".join(parts)
        parts.pop()
    return None


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """Return which folders each folder imports from."""
    edges: dict[str, set[str]] = {}
    for room in PACKAGES:
        for file in (ROOT / room).rglob("*.py"):
            own = ".".join(file.parent.relative_to(ROOT).parts)
            others = {folder for name in imported(file) if (folder := folder_of(name)) is not None}
            edges.setdefault(own, set()).update(others - {own})
    return edges


def test_folders_import_each_other_in_no_circle(graph: dict[str, set[str]]) -> None:
    assert len(graph) > 50
    left = {folder: set(others) for folder, others in graph.items()}
    while leaves := {folder for folder, others in left.items() if not others & left.keys()}:
        for folder in leaves:
            del left[folder]
    assert left == {}
