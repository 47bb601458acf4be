"""Form and file of a draft: whatever was typed, a field changes its own key alone."""

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from consumers.control.console.core.draft import form_of, laid_in

TEXTS = st.sampled_from(
    [
        "",
        "# only a comment\n",
        "case-sensitive = true\n",
        "[filter]\nrules = ['a.*'] # why\n",
        "[sink]\nprotocol = 'avro'\n[filter]\nignore-txn-start-ts = [1]\n",
        "memory-quota = 1\n[mounter]\nworker-num = 3\n",
        "filter.rules = ['z.*']\nsink.protocol = 'simple'\n",
    ]
)
FORMS = st.fixed_dictionaries(
    {},
    optional={
        "rules": st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8), max_size=3),
        "case_sensitive": st.booleans(),
        "force_replicate": st.booleans(),
        "protocol": st.sampled_from(["", "canal-json", "open-protocol"]),
    },
)
KEYS = (("filter", "rules"), ("case-sensitive",), ("force-replicate",), ("sink", "protocol"))


@given(TEXTS, FORMS)
def test_form_that_is_laid_in_is_read_back_and_the_rest_stays(text: str, form: dict[str, object]) -> None:
    written = laid_in(text, form)
    assert form_of(written) == {**form_of(text), **form}
    assert _others(tomllib.loads(written)) == _others(tomllib.loads(text))
    assert all(line in written for line in text.splitlines() if line.startswith("#"))


@given(TEXTS)
def test_form_that_was_read_changes_nothing(text: str) -> None:
    assert laid_in(text, form_of(text)) == text


def _others(table: dict[str, object]) -> dict[str, object]:
    """Return a file's table without the form's keys, and without tables that hold nothing else."""
    left = {key: dict(value) if isinstance(value, dict) else value for key, value in table.items()}
    for *folders, key in KEYS:
        inner = left.get(folders[0], {}) if folders else left
        if isinstance(inner, dict):
            inner.pop(key, None)
    return {key: value for key, value in left.items() if value != {}}
