"""Names say what they hold, in the glossary's words."""

import ast
from pathlib import Path

import pytest

from tests.support.sources.repository import PACKAGES, ROOT, sources
from tests.support.sources.words import NO_NOUNS, Rejected, given_names, names_given_in, rejected_words

GLOSSARY = """# Page
## Glossary

| word | means | not |
|---|---|---|
| part | of a record | `piece`, `cut_off` |
| cut | rows, with `slice` in it | |
| reign | of an owner | `term` in `consumers/control`, `compose` |

## Next
| a | b | `c` |
"""


def test_nothing_is_called_by_a_word_that_says_nothing() -> None:
    called = [
        f"{source.relative_to(ROOT)}:{line}: {name}"
        for source in sources()
        for line, name in names_given_in(source)
        if name in NO_NOUNS
    ]
    assert called == []


@pytest.mark.parametrize("package", PACKAGES)
def test_names_of_the_product_have_no_word_that_the_glossary_rejects(package: str) -> None:
    rejected = rejected_words()
    called = [
        f"{path}:{line}: {name} has {reject.word!r}, the word is {reject.instead!r}"
        for source in sources()
        if (path := str(source.relative_to(ROOT))).startswith(f"{package}/")
        for line, name in [(1, source.stem), *names_given_in(source)]
        for reject in rejected
        if reject.is_in(name, path)
    ]
    assert called == []


def test_glossary_rejects_words_and_names_rooms_that_there_are() -> None:
    rejected = rejected_words()
    assert {("piece", "part"), ("term", "reign"), ("reign", "term")} <= {(no.word, no.instead) for no in rejected}
    assert [folder for no in rejected for folder in no.folders if not (ROOT / folder).is_dir()] == []
    assert [no.word for no in rejected if not no.word.islower() or not no.word.replace("_", "").isalpha()] == []


def test_rejected_words_are_those_of_the_third_column_of_the_glossary_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(GLOSSARY)

    assert rejected_words(page) == [
        Rejected("piece", "part", ()),
        Rejected("cut_off", "part", ()),
        Rejected("term", "reign", ("consumers/control", "compose")),
    ]


@pytest.mark.parametrize(
    ("word", "name", "is_in"),
    [
        ("term", "term", True),
        ("term", "_Term", True),
        ("term", "TermOptions", True),
        ("term", "OWNER_TERM_S", True),
        ("term", "LDAPTerm2", True),
        ("term", "determined", False),
        ("term", "terms", False),
        ("replica_set", "ReplicaSetState", True),
        ("replica_set", "replica_offset", False),
    ],
)
def test_rejected_word_is_seen_as_a_whole_word_of_a_name(word: str, name: str, is_in: bool) -> None:
    assert Rejected(word, "", ()).is_in(name, "compose/ports.py") is is_in


def test_word_rejected_in_a_room_may_stand_in_another() -> None:
    reject = Rejected("term", "reign", ("consumers/control",))
    assert reject.is_in("term", "consumers/control/owner/reign.py")
    assert not reject.is_in("term", "consumers/controls")
    assert not reject.is_in("term", "consumers/processors/run.py")


@pytest.mark.parametrize(
    "source",
    [
        "told = 1",
        "told: int",
        "for told in (): ...",
        "a = [1 for told in ()]",
        "(a := [told := 1])",
        "a, *told = ()",
        "with open('') as told: ...",
        "def told() -> None: ...",
        "class told: ...",
        "class A:\n    told: int",
        "a = lambda told: 1",
        "def a(*, told: int) -> None: ...",
        "def a(**told: int) -> None: ...",
        "self.told = 1",
        "raise Error('', told=1)",
        "import told_of as told",
        "try: ...\nexcept OSError as told: ...",
        "match a:\n    case [told]: ...",
        "match a:\n    case [*told]: ...",
        "match a:\n    case {**told}: ...",
    ],
)
def test_given_names_are_seen_wherever_a_source_gives_them(source: str) -> None:
    assert "told" in {name for _, name in given_names(ast.parse(source))}


def test_names_that_a_source_only_reads_are_not_given() -> None:
    assert {name for _, name in given_names(ast.parse("a = told.found(place, *its)"))} == {"a"}
