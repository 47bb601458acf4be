"""Fragments of the changelog can be collected, and CONTRIBUTING names every target of the Makefile."""

import re
import tomllib

from tests.support.sources.repository import ROOT, text_of

README_WORDS_MAX = 1_200
FRAGMENT_WORDS_MAX = 80


def test_each_fragment_has_a_subject_and_few_words() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
    subjects = "|".join(kind["directory"] for kind in settings["type"])
    fragments = [file for file in (ROOT / "changes").iterdir() if file.name not in settings["ignore"]]

    assert [file.name for file in fragments if not re.fullmatch(rf"\+[a-z0-9-]+\.({subjects})\.md", file.name)] == []
    assert [file.name for file in fragments if not 1 <= len(text_of(file).split()) <= FRAGMENT_WORDS_MAX] == []
    assert settings["start_string"].strip() in text_of(ROOT / "CHANGELOG.md")


def test_contributing_names_every_target() -> None:
    targets = re.findall(r"^([a-z-]+):.*## ", text_of(ROOT / "Makefile"), re.MULTILINE)

    assert [target for target in targets if f"`make {target}`" not in text_of(ROOT / "CONTRIBUTING.md")] == []


def test_readme_is_a_tour() -> None:
    assert len(text_of(ROOT / "README.md").split()) <= README_WORDS_MAX
