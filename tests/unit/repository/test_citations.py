"""Whatever code and pages cite is in the clone: files, sections, anchors, modules, names."""

from pathlib import Path

import pytest

from tests.support.sources.citations import anchors, broken_in_page, broken_in_source, expanded, sections
from tests.support.sources.repository import PACKAGES, ROOT, pages, sources, text_of

ARCHITECTURE = ROOT / "docs" / "architecture.md"
OWN_PLANTS = Path(__file__)


@pytest.mark.parametrize("page", list(pages()), ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_cites_is_in_the_clone(page: Path) -> None:
    assert list(broken_in_page(page)) == []


def test_what_sources_cite_is_in_the_clone() -> None:
    broken = {
        str(source.relative_to(ROOT)): citations
        for source in sources()
        if source != OWN_PLANTS and (citations := list(broken_in_source(source)))
    }
    assert broken == {}


def test_architecture_names_every_room() -> None:
    named = {path for span in text_of(ARCHITECTURE).split("`")[1::2] for path in expanded(span)}
    rooms = {
        str(folder.relative_to(ROOT))
        for package in PACKAGES
        for folder in [ROOT / package, *(ROOT / package).rglob("*")]
        if folder.is_dir() and any(file.name != "__init__.py" for file in folder.glob("*.py"))
    }
    assert rooms - named == set()


@pytest.mark.parametrize(
    ("cited", "complaint"),
    [
        ("See docs/formats/nothing.md.", "page docs/formats/nothing.md"),
        ("See docs/formats/cdcpb.md §99.", "section §99 of cdcpb.md"),
        ("See §4.", "section §4 of no page"),
        ("See DESIGN §4.", "page of no clone: DESIGN §"),
        ("See reference/cdcpb.md.", "page of no clone: reference/c"),
        ("See sorters/core/nothing.py.", "path sorters/core/nothing.py"),
        ("See :mod:`schemas.nothing`.", "mod schemas.nothing"),
        ("See :func:`schemas.ids.nothing`.", "func schemas.ids.nothing"),
        ("See :class:`Nothing`.", "class Nothing"),
        ("See ``schemas.ids.nothing``.", "name schemas.ids.nothing"),
    ],
)
def test_a_source_that_cites_nothing_is_found(tmp_path: Path, cited: str, complaint: str) -> None:
    source = tmp_path / "planted.py"
    source.write_text(f'"""{cited}"""\n')

    assert complaint in list(broken_in_source(source))


def test_a_source_that_cites_what_is_there_passes(tmp_path: Path) -> None:
    source = tmp_path / "planted.py"
    source.write_text(
        '"""docs/formats/cdcpb.md §4.2 and §4.3, RFC 9113 §3.4, :func:`schemas.ids.physical_ms`, :class:`Here`."""\n'
        "class Here: ...\n"
    )

    assert list(broken_in_source(source)) == []


@pytest.mark.parametrize(
    ("cited", "complaint"),
    [
        ("[x](nothing.md)", "link nothing.md"),
        ("[x](page.md#nothing)", "link page.md#nothing"),
        ("`schemas/nothing.py`", "path schemas/nothing.py"),
        ("`schemas/{tidb,nothing}`", "path schemas/nothing"),
        ("`Ts.nothing` (`schemas/ids.py`)", "Ts.nothing in schemas/ids.py"),
        ("`nothing` in `schemas/ids.py`", "nothing in schemas/ids.py"),
    ],
)
def test_a_page_that_cites_nothing_is_found(tmp_path: Path, cited: str, complaint: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# There\n\n{cited}\n")

    assert list(broken_in_page(page)) == [complaint]


def test_a_page_that_cites_what_is_there_passes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# It's there: 2.1\n\n[x](page.md#its-there-21) `schemas/{tidb,rawlog}` `data/{schema}/x`\n")

    assert list(broken_in_page(page)) == []


def test_sections_and_anchors_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n## 3. One\n### 3.1 Two `x`\n```\n# 9. code\n```\n## Twice\n## Twice\n")

    assert sections(page) == {"3", "3.1"}
    assert anchors(page) == {"title", "3-one", "31-two-x", "twice", "twice-1"}
