"""Values of open-protocol's columns in JSON, for one value and for whole columns.

Integers, ENUM, SET and BIT are numbers, floats are Go's shortest form, all TEXT and BLOB types are base64; the rest are
strings, of which a BINARY or VARBINARY is quoted as Go quotes it first.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.changes import BinaryArray
from schemas.tidb.mysql_types import STRING_TYPES, MysqlType
from schemas.tidb.table import ColumnVersion
from schemas.tidb.value import Value
from sorters.core.columnar.base64_texts import base64_texts
from sorters.core.columnar.escape import GO_JSON
from sorters.core.columnar.go_quote import quoted, quoted_column
from sorters.core.encode.wire.segments import Segment, or_else
from sorters.core.mount.column import FLOAT_TYPES, NUMBER_TYPES, Column, value_text

_BASE64_TYPES = frozenset({MysqlType.TINYBLOB, MysqlType.BLOB, MysqlType.MEDIUMBLOB, MysqlType.LONGBLOB})
_SMALL, _LARGE = 1e-6, 1e21
"""encoding/json writes floats outside with an exponent."""


def column_json(column: Column) -> list[Segment]:
    """Return the segments of a column's values."""
    spec = column.spec
    if spec.tp in NUMBER_TYPES:
        text = _numbers(column)
        return [or_else(text, b"null")]
    text = _strings(column)
    if not text.null_count:
        return [b'"', text, b'"']
    if text.null_count == len(text):
        return [b"null"]
    return [or_else(pc.binary_join_element_wise(b'"', text, b'"', b""), b"null")]


def value_json(spec: ColumnVersion, value: Value) -> bytes:
    """Return one value."""
    text = value_text(spec, value)
    if text is None:
        return b"null"
    if spec.tp in FLOAT_TYPES:
        assert isinstance(value, float)
        extreme = takes_exponent(np.array([value]), single=spec.tp is MysqlType.FLOAT)[0]
        return _exponent_form(value, single=spec.tp is MysqlType.FLOAT) if extreme else text
    if spec.tp in NUMBER_TYPES:
        return text
    if spec.tp in _BASE64_TYPES:
        return b'"%s"' % base64_texts(pa.array([text], pa.binary()))[0].as_py()
    if spec.tp in STRING_TYPES and spec.binary:
        return b'"%s"' % quoted(text)
    return b'"%s"' % GO_JSON.value(text)


def _strings(column: Column) -> BinaryArray:
    tp = column.spec.tp
    if tp in _BASE64_TYPES:
        return base64_texts(column.text)
    if tp in STRING_TYPES and column.spec.binary:
        return quoted_column(column.text)
    if tp in STRING_TYPES or tp is MysqlType.JSON:
        return column.escaped(GO_JSON)
    return column.text  # digits and punctuation, which JSON takes as they are


def _numbers(column: Column) -> BinaryArray:
    text, tp = column.text, column.spec.tp
    if tp not in FLOAT_TYPES:
        return text
    single = tp is MysqlType.FLOAT
    extreme = takes_exponent(column.numbers, single=single)
    if column.valid is not None:
        extreme &= column.valid
    if not extreme.any():
        return text
    distinct, index = np.unique(column.numbers[extreme], return_inverse=True)
    forms = pa.array([_exponent_form(value, single=single) for value in distinct.tolist()], pa.binary())
    return pc.replace_with_mask(text, pa.array(extreme), forms.take(pa.array(index.reshape(-1))))


def takes_exponent(values: npt.NDArray[np.float64], *, single: bool) -> npt.NDArray[np.bool_]:
    """Tell which floats Go writes with an exponent; a FLOAT is compared with the limits as floats."""
    size = np.abs(values.astype(np.float32) if single else values)
    small, large = (np.float32(_SMALL), np.float32(_LARGE)) if single else (_SMALL, _LARGE)
    extreme: npt.NDArray[np.bool_] = (size != 0) & ((size < small) | (size >= large))
    return extreme


def _exponent_form(value: float, *, single: bool) -> bytes:
    r"""Return the shortest digits with an exponent, which has no leading zero.

    >>> _exponent_form(1.5e-7, single=False), _exponent_form(1e300, single=False)
    (b'1.5e-7', b'1e+300')
    """
    digits = str(np.float32(value)) if single else repr(value)
    mantissa, _, exponent = digits.partition("e")
    return f"{mantissa.removesuffix('.0')}e{exponent[0]}{exponent[1:].lstrip('0')}".encode()
