"""What sources and pages cite: files, sections of pages, anchors, modules and what they define."""

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from tests.support.sources.repository import FOLDERS, PACKAGES, ROOT, module_file, names_in, text_of

_PAGE = re.compile(r"(?<![\w/.-])docs/[\w./-]+\.md")
_OTHERS_SECTION = re.compile(r"RFC \d+ §")
_HEADING = re.compile(r"^#+ +(.*?) *$", re.MULTILINE)
_NUMBERED = re.compile(r"(\d+(?:\.\d+)*)\.? ")
_LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)")
_SPAN = re.compile(r"`([^`\n]+)`")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_PATH = re.compile(rf"(?:{'|'.join(FOLDERS)})(?:/[\w.,{{}}*-]+)+/?")
_SOURCE = re.compile(rf"(?<![\w/.-])(?:{'|'.join((*PACKAGES, 'tests'))})(?:/\w+)+\.(?:py|md|toml|yml|json)\b")
_PLACEHOLDER = re.compile(r"\{\w+\}|/[A-Z]{2,}\b|<")
_ROLE = re.compile(r":(mod|class|func|meth|data|attr|exc|const):`~?([\w.\s]+)`")
_DOTTED = re.compile(rf"``((?:{'|'.join(set(PACKAGES) - {'tidebus'})})(?:\.\w+)+)``")  # tidebus.…: topics, tables
_NAMED = re.compile(r"`(\w+(?:\.\w+)?)`\s+(?:in\s+)?\(?`([\w/]+\.py)`")
_GONE = re.compile(r"DESIGN(?:\.md)? §|(?<![\w/-])reference/\w|NEXT\.md|find[i]ngs/")
_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")


def broken_in_page(page: Path) -> Iterator[str]:
    """Yield what a page cites and nobody finds."""
    text = text_of(page)
    yield from _gone(text)
    prose = _FENCE.sub("", text)
    for target in _LINK.findall(prose):
        if "://" not in target and not _is_there(page, target):
            yield f"link {target}"
    for span in _SPAN.findall(prose):
        if _PATH.fullmatch(span) and not _PLACEHOLDER.search(span):
            yield from (f"path {path}" for path in expanded(span) if not list(ROOT.glob(path)))
    for name, file in _NAMED.findall(prose):
        if (ROOT / file).is_file() and not _defines(ROOT / file, name):
            yield f"{name} in {file}"


def broken_in_source(source: Path) -> Iterator[str]:
    """Yield what a source cites and nobody finds."""
    text = text_of(source)
    yield from _gone(text)
    yield from _broken_sections(text)
    for path in _SOURCE.findall(text):
        if not (ROOT / path).is_file():
            yield f"path {path}"
    for role, target in _ROLE.findall(text):
        if not _resolves(source, role, re.sub(r"\s", "", target)):
            yield f"{role} {target}"
    for target in _DOTTED.findall(text):
        if not _dotted(target):
            yield f"name {target}"


def expanded(path: str) -> list[str]:
    """Return the paths that a path with braces stands for.

    >>> expanded("a/{b,c}/d")
    ['a/b/d', 'a/c/d']
    """
    parts = _BRACES.split(path.rstrip("/"))
    choices = [part.split(",") if number % 2 else [part] for number, part in enumerate(parts)]
    return ["".join(choice) for choice in product(*choices)]


def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    slugs: dict[str, int] = {}
    for heading in _HEADING.findall(_FENCE.sub("", text_of(page))):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        count = slugs.get(slug, 0)
        slugs[slug] = count + 1
        if count:
            slugs[f"{slug}-{count}"] = 1
    return frozenset(slugs)


def sections(page: Path) -> frozenset[str]:
    """Return the numbers of a page's sections."""
    numbers = (_NUMBERED.match(heading) for heading in _HEADING.findall(_FENCE.sub("", text_of(page))))
    return frozenset(match[1] for match in numbers if match)


def _gone(text: str) -> Iterator[str]:
    yield from (f"page of no clone: {match[0]}" for match in _GONE.finditer(text))


def _broken_sections(text: str) -> Iterator[str]:
    """Sections behind a page's name belong to it; one that stands alone belongs to the page named last before it."""
    page: Path | None = None
    at = 0
    for token in re.finditer(rf"{_PAGE.pattern}|{_OTHERS_SECTION.pattern}|§(\d+(?:\.\d+)*)", text):
        if token.start() < at:
            continue
        if token[0].startswith("docs/"):
            page = ROOT / token[0]
            if not page.is_file():
                yield f"page {token[0]}"
                page = None
        elif token[1] is None:
            at = token.end() + 8
        elif page is None:
            yield f"section §{token[1]} of no page"
        elif token[1] not in sections(page):
            yield f"section §{token[1]} of {page.name}"


def _is_there(page: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    if not file.exists():
        return False
    return not anchor or (file.suffix == ".md" and anchor in anchors(file))


def _defines(file: Path, name: str) -> bool:
    names = names_in(file)
    return name in names or any(known.endswith(f".{name}") for known in names)


def _resolves(source: Path, role: str, target: str) -> bool:
    if target.split(".")[0] in PACKAGES:
        return _dotted(target)
    if role == "mod":
        # Short for a module beside this one, or a module of a library.
        return True
    return _defines(source, target) or "." in target


def _dotted(target: str) -> bool:
    parts = target.split(".")
    for count in range(len(parts), 0, -1):
        file = module_file(".".join(parts[:count]))
        if file is None:
            continue
        rest = ".".join(parts[count:])
        if not rest:
            return True
        return not file.is_dir() and _defines(file, rest)
    return False
