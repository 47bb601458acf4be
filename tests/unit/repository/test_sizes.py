"""Files and functions stay as small as CONTRIBUTING says, so that each can be read at one go."""

import ast

from tests.support.sources.repository import ROOT, sources, text_of, tree_of

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 69
"""Of the product; a fixture of the tests may set up more. Counted from ``def`` on, without decorators."""


def test_no_file_has_more_lines_than_may_be() -> None:
    counts = {str(source.relative_to(ROOT)): len(text_of(source).splitlines()) for source in sources()}
    assert {path: count for path, count in counts.items() if count > FILE_LINES_MAX} == {}


def test_no_function_of_the_product_has_more_lines_than_may_be() -> None:
    counts = {
        f"{source.relative_to(ROOT)}:{node.lineno}: {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for source in sources()
        if source.relative_to(ROOT).parts[0] != "tests"
        for node in ast.walk(tree_of(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: count for name, count in counts.items() if count > FUNCTION_LINES_MAX} == {}
