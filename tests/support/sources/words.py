"""Names that sources give, and the words that they do without: what holds nothing, what the glossary rejects."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.sources.repository import DEFINITIONS, ROOT, text_of, tree_of

NO_NOUNS = frozenset({"one", "found", "told", "its", "place"})
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SPAN = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Rejected:
    """A word that the glossary rejects, for which word, and in which ``folders``; none: in all of them."""

    word: str
    instead: str
    folders: tuple[str, ...]

    def is_in(self, name: str, source: str) -> bool:
        """Return whether a name of a source, by its path in the repository, has the word."""
        if self.folders and not source.startswith(tuple(f"{folder}/" for folder in self.folders)):
            return False
        return f"_{self.word}_" in f"_{snake_case(name)}_"


def given_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of all that a source names itself: definitions, parameters, variables, attributes, fields.

    A keyword of a call counts: it names a parameter of ours, or a field of an error. What is only read does not.
    """
    for node in ast.walk(tree):
        if isinstance(node, DEFINITIONS):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg) or (isinstance(node, ast.keyword) and node.arg):
            yield node.lineno, str(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.lineno, node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.lineno, node.rest
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((node.lineno, alias.asname) for alias in node.names if alias.asname)


@cache
def names_given_in(source: Path) -> tuple[tuple[int, str], ...]:
    """Return line and name of all that a file names itself."""
    return tuple(given_names(tree_of(source)))


@cache
def snake_case(name: str) -> str:
    """Return a name's words in lower case between underscores.

    >>> snake_case("_SimHTTPTopic2")
    'sim_http_topic_2'
    """
    return "_".join(_PARTS.findall(name)).lower()


def rejected_words(page: Path = ROOT / "docs" / "architecture.md") -> list[Rejected]:
    """Return what the column "not" of a page's glossary rejects: `` `word`, `word` `` or `` `word` in `folder` ``."""
    _, _, glossary = text_of(page).partition("\n## Glossary\n")
    rejected = []
    for line in glossary.split("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 3:
            words, _, folders = cells[2].partition(" in ")
            rejected += [Rejected(word, cells[0], tuple(_SPAN.findall(folders))) for word in _SPAN.findall(words)]
    return rejected
