"""Functions of conditions by their names (:mod:`schemas.config.filter.expression_functions`)."""

from collections.abc import Sequence

from sorters.core.filter.value_expression.arithmetic import arithmetic
from sorters.core.filter.value_expression.control_functions import extreme, if_else, ifnull, isnull, nullif
from sorters.core.filter.value_expression.json_values import extracted, unquoted
from sorters.core.filter.value_expression.number_functions import OF_ONE_NUMBER, of_one_number, rounded
from sorters.core.filter.value_expression.parts import Bound
from sorters.core.filter.value_expression.text_functions import (
    OF_ONE_TEXT,
    concat,
    located,
    of_one_text,
    part_of,
    regexp,
    replaced,
    strcmp,
)
from sorters.core.filter.value_expression.time_functions import OF_ONE_TIME, date_format, datediff, of_one_time


def called(at: int, name: str, arguments: Sequence[Bound]) -> Bound:
    """Return a function's value; the parser has counted its arguments.

    Raises:
        MisfitError: TiDB would convert one of them.
    """
    if name in OF_ONE_TEXT:
        return of_one_text(at, name, arguments[0])
    if name in OF_ONE_TIME:
        return of_one_time(at, name, arguments[0])
    if name in OF_ONE_NUMBER:
        return of_one_number(at, name, arguments[0])
    match name, arguments:
        case "IF", [condition, then, otherwise]:
            return if_else(at, condition, then, otherwise)
        case (("COALESCE" | "IFNULL"), _):
            return ifnull(at, arguments)
        case "NULLIF", [first, second]:
            return nullif(at, first, second)
        case "ISNULL", [operand]:
            return isnull(at, operand)
        case (("GREATEST" | "LEAST"), _):
            return extreme(at, name, arguments)
        case "MOD", [first, second]:
            return arithmetic(at, "%", first, second)
        case (("ROUND" | "TRUNCATE"), [operand, *places]):
            return rounded(at, name, operand, places[0] if places else None)
        case "DATEDIFF", [first, second]:
            return datediff(at, first, second)
        case "DATE_FORMAT", [time, form]:
            return date_format(at, time, form)
        case "JSON_EXTRACT", [document, path]:
            return extracted(at, document, path)
        case "JSON_UNQUOTE", [value]:
            return unquoted(at, value)
    return _of_texts(at, name, arguments)


def _of_texts(at: int, name: str, arguments: Sequence[Bound]) -> Bound:
    match name, arguments:
        case (("CONCAT" | "CONCAT_WS"), _):
            return concat(at, name, arguments)
        case (("LEFT" | "RIGHT" | "SUBSTRING"), [text, *numbers]):
            return part_of(at, name, text, numbers)
        case "REPLACE", _:
            return replaced(at, arguments)
        case "LOCATE", [part, text]:
            return located(at, name, part, text)
        case "INSTR", [text, part]:
            return located(at, name, part, text)
        case "STRCMP", [first, second]:
            return strcmp(at, first, second)
        case "REGEXP_LIKE", [text, pattern]:
            return regexp(at, text, pattern)
    raise AssertionError(name)
