"""The repository's own files, for tests that read them as text: sources, pages, what a source defines."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGES = ("schemas", "edges", "producers", "sorters", "consumers", "compose", "tidebus")
FOLDERS = (*PACKAGES, "examples", "tests", "docs", "changes")
_GENERATED = ("_pb2.py", "_pb2_grpc.py")
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def sources() -> Iterator[Path]:
    """Yield all Python files that people write."""
    for folder in (*PACKAGES, "examples", "tests"):
        yield from (file for file in sorted((ROOT / folder).rglob("*.py")) if not file.name.endswith(_GENERATED))


def pages() -> Iterator[Path]:
    """Yield all pages in Markdown."""
    yield from sorted(ROOT.glob("*.md"))
    for folder in FOLDERS:
        yield from sorted((ROOT / folder).rglob("*.md"))


@cache
def text_of(file: Path) -> str:
    """Return a file's text."""
    return file.read_text(encoding="utf-8")


@cache
def tree_of(file: Path) -> ast.Module:
    """Return a source's syntax tree."""
    return ast.parse(text_of(file))


def module_file(module: str) -> Path | None:
    """Return the source of a module or package by its dotted name; None: there is no such."""
    stem = ROOT / Path(*module.split("."))
    for file in (stem.with_suffix(".py"), stem / "__init__.py"):
        if file.is_file():
            return file
    return stem if stem.is_dir() else None


@cache
def names_in(file: Path) -> frozenset[str]:
    """Return what a module defines or imports at its top, and ``Class.member`` of its classes."""
    if file.is_dir():
        return frozenset()
    return frozenset(_names(tree_of(file)))


def _names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).split(".")[0] for alias in node.names)
    for node in tree.body:
        yield from _bound(node)
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{member}" for member in _members(node))


def _members(defined: ast.ClassDef) -> Iterator[str]:
    for node in ast.walk(defined):
        yield from _bound(node)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def _bound(node: ast.AST) -> Iterator[str]:
    if isinstance(node, DEFINITIONS):
        yield node.name
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            yield from (part.id for part in ast.walk(target) if isinstance(part, ast.Name))
