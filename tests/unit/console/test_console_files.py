"""The console's files: by a fixed table, under a policy that lets nothing else in."""

import re
from pathlib import Path

import pytest

import consumers.control.console as console
from compose.operator.error_codes import as_data, catalogue
from consumers.control.console.files import NAMES, error_codes_text
from tests.support.control.api import Api

STATIC = Path(str(console.__file__)).parent / "static"


def test_files_are_those_of_the_table_alone() -> None:
    assert sorted(NAMES) == sorted(path.name for path in STATIC.iterdir())


@pytest.mark.parametrize("path", ["/console", "/console/", *(f"/console/{name}" for name in NAMES)])
def test_each_file_is_served_with_a_policy_that_lets_nothing_else_in(api: Api, path: str) -> None:
    answer = api.http.get(path)
    name = path.removeprefix("/console").strip("/") or "index.html"
    assert (answer.status_code, answer.content) == (200, (STATIC / name).read_bytes())
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy and answer.headers["X-Frame-Options"] == "DENY"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "name",
    [
        "routes.py",
        "..%2fapp.py",
        "%2e%2e/app.py",
        "../app.py",
        "static/main.js",
        "%2fetc%2fpasswd",
        "main.js%00",
        "MAIN.JS",
    ],
)
def test_no_path_leads_out_of_the_table(api: Api, name: str) -> None:
    assert api.http.get(f"/console/{name}").status_code == 404


def test_page_has_no_script_or_style_in_itself_and_names_only_our_files() -> None:
    page = (STATIC / "index.html").read_text()
    assert re.findall(r"<style|\sstyle=|\son[a-z]+=|javascript:", page) == []
    assert re.findall(r"<script[^>]*>(?!</script>)", page) == []
    named = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert {name for name in named if not name.startswith(("/console/", "#"))} == set()


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(".js")])
def test_scripts_make_no_markup_of_data_and_load_only_each_other(name: str) -> None:
    text = (STATIC / name).read_text()
    assert (
        re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|\.style\b", text)
        == []
    )
    assert {path for path in re.findall(r'from "([^"]*)"', text) if path.removeprefix("./") not in NAMES} == set()
    shown = r"https\?:\\/\\/|(kafka|mysql|file|s3|iceberg)://"
    assert "http://www.w3.org/2000/svg" in text or "://" not in re.sub(shown, "", text)


def test_error_codes_are_those_of_the_code() -> None:
    assert error_codes_text() == as_data(catalogue()), (
        "make it anew: python -m compose.operator.error_codes --json > consumers/control/console/error_codes.json"
    )
