"""The columnar split decision equals the scalar one."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sorters.core.route.split_update import split_mask
from tests.support.topics.split_rule import must_split

TEXT = st.sampled_from([None, b"null", b"", b"1", b"2"])


@given(
    st.lists(st.tuples(st.booleans(), TEXT, TEXT, TEXT, TEXT), max_size=30),
    st.sampled_from([pa.binary(), pa.large_binary()]),
)
def test_split_mask_any_rows_equals_must_split(
    rows: list[tuple[bool, bytes | None, bytes | None, bytes | None, bytes | None]], kind: pa.DataType
) -> None:
    is_update = np.array([row[0] for row in rows], np.bool_)
    old = [pa.array([row[column] for row in rows], kind) for column in (1, 2)]
    new = [pa.array([row[column] for row in rows], kind) for column in (3, 4)]
    expected = [update and must_split([a, b], [c, d]) for update, a, b, c, d in rows]
    assert split_mask(old, new, is_update).tolist() == expected
