"""Small table versions for tests, from TableInfo JSON as TiDB writes it."""

from collections.abc import Sequence
from typing import Any

from schemas.ids import Ts
from schemas.tidb.table import TableVersion
from schemas.tidb.table_info import table_version

NOT_NULL, PRIMARY, VARCHAR, BIGINT = 1, 2, 15, 8


def make_table(
    columns: Sequence[str],
    *,
    schema: str = "test",
    name: str = "t1",
    pk_is_handle: str | None = None,
    unique: dict[str, Sequence[str]] | None = None,
    plain: dict[str, Sequence[str]] | None = None,
    virtual: Sequence[str] = (),
    nullable: Sequence[str] = (),
) -> TableVersion:
    """Build a table of BIGINT columns.

    Args:
        pk_is_handle: the column that is the integer primary key.
        unique: unique indexes, name to columns; ``plain`` the same for other indexes.
        virtual: columns that are virtual and generated.
        nullable: columns without NOT NULL.
    """
    raw_columns: list[dict[str, Any]] = []
    for number, column in enumerate(columns):
        flag = (0 if column in nullable else NOT_NULL) | (PRIMARY if column == pk_is_handle else 0)
        raw_columns.append(
            {
                "id": number + 1,
                "name": {"O": column, "L": column.lower()},
                "offset": number,
                "state": 5,
                "type": {
                    "Tp": BIGINT,
                    "Flag": flag,
                    "Flen": 20,
                    "Decimal": 0,
                    "Charset": "binary",
                    "Collate": "binary",
                },
                "generated_expr_string": "`a` + 1" if column in virtual else "",
                "generated_stored": False,
            }
        )
    indexes = [(index, parts, True) for index, parts in (unique or {}).items()]
    indexes += [(index, parts, False) for index, parts in (plain or {}).items()]
    raw_indexes = [
        {
            "id": number + 1,
            "idx_name": {"O": index, "L": index.lower()},
            "is_unique": is_unique,
            "is_primary": False,
            "state": 5,
            "idx_cols": [
                {"name": {"O": part, "L": part.lower()}, "offset": list(columns).index(part), "length": -1}
                for part in parts
            ],
        }
        for number, (index, parts, is_unique) in enumerate(indexes)
    ]
    info = {
        "id": 100,
        "name": {"O": name, "L": name.lower()},
        "cols": raw_columns,
        "index_info": raw_indexes,
        "pk_is_handle": pk_is_handle is not None,
        "state": 5,
    }
    return table_version(info, schema_id=1, schema=schema, version=Ts(1))
