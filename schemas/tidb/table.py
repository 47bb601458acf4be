"""One version of one table, as the mounter, the dispatcher and the encoders see it.

Built from TiDB's TableInfo JSON by :func:`table_version`. The rules for handle key, flags and eligibility are TiCDC's
(``cdc/model/schema_storage.go``: ``WrapTableInfo``, ``findHandleIndex``, ``initColumnsFlag``), with one difference:
columns and indexes that are not public belong to a DDL under way and are invisible here.
"""

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

from schemas.errors import CorruptDataError
from schemas.ids import TableId, Ts
from schemas.tidb.mysql_types import SCHEMA_STATE_PUBLIC, CdcFlag, MysqlFlag, MysqlType
from schemas.tidb.origin_default import absent_value, default_text, origin_default_text
from schemas.tidb.value import Value

# Plain integers: these two are asked for each value of a row, and ``&`` of an IntFlag takes half a microsecond.
_NOT_NULL, _UNSIGNED = int(MysqlFlag.NOT_NULL), int(MysqlFlag.UNSIGNED)
HANDLE_INDEX_PK_IS_HANDLE = -1
"""The row key holds the primary key."""
HANDLE_INDEX_NONE = -2
"""No primary key and no not-null unique key."""


class HandleKind(Enum):
    """What stands after ``_r`` in the row key."""

    INT = "int"
    """One integer column: the primary key."""
    COMMON = "common"
    """The columns of a clustered primary key, memcomparable."""
    ROW_ID = "row_id"
    """A hidden integer that is no column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnVersion:
    """A column."""

    id: int
    name: str
    offset: int
    """Index in ``TableVersion.columns``; -1: a virtual generated column, which is in no row."""
    tp: MysqlType
    mysql_flag: int
    cdc_flag: CdcFlag
    flen: int
    decimal: int
    charset: str
    collation: str
    elems: tuple[str, ...]
    """Names of an ENUM or SET."""
    default: str | None
    """DEFAULT as TiDB's text, for schemas and DDL messages; a BIT's is its bytes, one character each (ISO-8859-1).
    None: there is none, or it is NULL."""
    origin_default: str | None
    """The default when the column was added, as TiDB's text: what rows written before hold."""
    absent_value: Value
    """What a row without this column holds, in mounted form; a TIMESTAMP's in UTC (``packed_time.text_in_zone``)."""
    generated: bool
    stored: bool
    comment: str
    in_key: bool
    """The row key holds the whole value: a part of the clustered primary key, neither collated nor a prefix."""
    default_is_expression: bool = False
    """``default`` is the text of an expression that TiDB evaluates for each row, such as ``nextval(`d`.`sq`)``."""
    hidden: bool = False
    """TiDB made it for an index over an expression; users do not see it."""

    @property
    def nullable(self) -> bool:
        return not self.mysql_flag & _NOT_NULL

    @property
    def unsigned(self) -> bool:
        return self.mysql_flag & _UNSIGNED != 0

    @property
    def binary(self) -> bool:
        """Bytes rather than text, for the string types."""
        return self.charset == "binary"

    @property
    def visible(self) -> bool:
        """CDC sees it: it is no virtual generated column."""
        return self.offset >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexVersion:
    """A public index. The primary key of a ``pk_is_handle`` table is none, as in TiDB."""

    id: int
    name: str
    unique: bool
    primary: bool
    column_names: tuple[str, ...]
    offsets: tuple[int, ...]
    """Into ``TableVersion.columns``; virtual generated columns are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionVersion:
    """A partition; its id is a physical table id."""

    id: TableId
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVersion:
    """A table from ``version`` (exclusive) to its next version."""

    schema_id: int
    schema: str
    table: str
    table_id: TableId
    """The logical id; rows of a partitioned table carry the partition's id."""
    version: Ts
    """finished_ts of the DDL that made it, or the ts of the snapshot."""
    update_ts: Ts
    """TiDB's own ``update_timestamp``."""
    columns: tuple[ColumnVersion, ...]
    """Visible to CDC, in table order."""
    all_columns: tuple[ColumnVersion, ...]
    """With virtual generated columns."""
    indexes: tuple[IndexVersion, ...]
    index_columns_offset: tuple[tuple[int, ...], ...]
    """Each unique index or PK as offsets into ``columns``; the integer PK comes first."""
    handle_kind: HandleKind
    handle_index_id: int
    handle_columns: tuple[int, ...]
    """Offsets of the handle key (CdcFlag.HANDLE_KEY), in key order; empty: there is none."""
    key_columns: tuple[int, ...]
    """Offsets of the columns in the row key, in key order; empty for ROW_ID."""
    partitions: tuple[PartitionVersion, ...]
    charset: str
    collation: str
    is_view: bool
    is_sequence: bool
    eligible: bool
    """Has a usable key, or is a view. Without it rows are skipped, unless the changefeed says ``force-replicate``."""
    soft_deletes: bool = False
    """TiDB marks it as SOFTDELETE or ACTIVE_ACTIVE: it deletes a row by a time in ``_tidb_softdelete_time``."""
    active_active: bool = False
    """TiDB marks it as ACTIVE_ACTIVE: of two writes to a row in two clusters the later one stays."""

    @property
    def name(self) -> str:
        """``schema.table``."""
        return f"{self.schema}.{self.table}"

    @property
    def physical_ids(self) -> tuple[TableId, ...]:
        """The ids that row keys carry: the partitions', or the table's own. None for views and sequences."""
        if self.is_view or self.is_sequence:
            return ()
        return tuple(partition.id for partition in self.partitions) or (self.table_id,)

    @property
    def pk_is_handle(self) -> bool:
        return self.handle_kind is HandleKind.INT


def table_version(info: dict[str, Any], *, schema_id: int, schema: str, version: Ts) -> TableVersion:
    """Build a version from TiDB's TableInfo JSON.

    Raises:
        CorruptDataError: a field is missing, or a type code is unknown.
    """
    try:
        return _build(info, schema_id, schema, version)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise CorruptDataError(
            "table info does not decode", table_id=info.get("id"), schema=schema, version=version, reason=repr(error)
        ) from error


def ci_name(name: Any) -> str:
    """Return the original spelling of a CIStr; very old clusters wrote a plain string."""
    return str(name["O"]) if isinstance(name, dict) else str(name)


def enabled_partitions(info: dict[str, Any]) -> tuple[PartitionVersion, ...]:
    """Return the partitions of a TableInfo; empty for a table without them."""
    partition = info.get("partition")
    if not partition or not partition.get("enable"):
        return ()
    definitions = partition.get("definitions") or []
    return tuple(PartitionVersion(id=TableId(int(p["id"])), name=ci_name(p["name"])) for p in definitions)


def is_eligible(info: dict[str, Any]) -> bool:
    """Tell from the JSON alone what ``TableVersion.eligible`` will be; cheap, for stores of many tables."""
    if info.get("sequence"):
        return False
    if info.get("view") or info.get("pk_is_handle") or info.get("is_common_handle"):
        return True
    columns = info["cols"]
    return any(_not_null_unique(index, columns) for index in info.get("index_info") or [] if _public(index))


def _build(info: dict[str, Any], schema_id: int, schema: str, version: Ts) -> TableVersion:
    raw_columns: list[dict[str, Any]] = info.get("cols") or []
    raw_indexes = [index for index in info.get("index_info") or [] if _public(index)]
    offsets = _visible_offsets(raw_columns)
    kind, key_parts = _row_key(info, raw_columns, raw_indexes)
    handle_index_id = _handle_index_id(kind, raw_columns, raw_indexes)
    flags = _cdc_flags(raw_columns, raw_indexes, handle_index_id)
    whole_in_key = {offset for offset, length in key_parts if length < 0}
    all_columns = tuple(
        _column(raw, offsets[offset], flags[offset], whole_in_key=offset in whole_in_key)
        for offset, raw in enumerate(raw_columns)
        if _public(raw)
    )
    indexes = tuple(_index(raw, raw_columns, offsets) for raw in raw_indexes)
    key_columns = tuple(offsets[offset] for offset, _ in key_parts)
    handle = next((index.offsets for index in indexes if index.id == handle_index_id), key_columns)
    unique = [index.offsets for index in indexes if (index.primary or index.unique) and index.offsets]
    return TableVersion(
        schema_id=schema_id,
        schema=schema,
        table=ci_name(info["name"]),
        table_id=TableId(int(info["id"])),
        version=version,
        update_ts=Ts(int(info.get("update_timestamp") or 0)),
        columns=tuple(column for column in all_columns if column.visible),
        all_columns=all_columns,
        indexes=indexes,
        index_columns_offset=((key_columns, *unique) if kind is HandleKind.INT else tuple(unique)),
        handle_kind=kind,
        handle_index_id=handle_index_id,
        handle_columns=handle,
        key_columns=key_columns,
        partitions=enabled_partitions(info),
        charset=info.get("charset") or "",
        collation=info.get("collate") or "",
        is_view=bool(info.get("view")),
        is_sequence=bool(info.get("sequence")),
        eligible=is_eligible(info),
        soft_deletes=bool(info.get("is_active_active")) or info.get("softdelete_info") is not None,
        active_active=bool(info.get("is_active_active")),
    )


def _public(part: dict[str, Any]) -> bool:
    return int(part["state"]) == SCHEMA_STATE_PUBLIC


def _generated(raw: dict[str, Any]) -> bool:
    return bool(raw.get("generated_expr_string"))


def _visible(raw: dict[str, Any]) -> bool:
    return _public(raw) and not (_generated(raw) and not raw.get("generated_stored"))


def _visible_offsets(raw_columns: list[dict[str, Any]]) -> list[int]:
    offsets, next_offset = [], 0
    for raw in raw_columns:
        visible = _visible(raw)
        offsets.append(next_offset if visible else -1)
        next_offset += visible
    return offsets


def _row_key(
    info: dict[str, Any], raw_columns: list[dict[str, Any]], raw_indexes: list[dict[str, Any]]
) -> tuple[HandleKind, list[tuple[int, int]]]:
    """Return what the row key holds: offsets in ``raw_columns`` with the prefix length (-1: the whole column)."""
    if info.get("pk_is_handle"):
        for offset, raw in enumerate(raw_columns):
            if int(raw["type"]["Flag"]) & MysqlFlag.PRIMARY_KEY:
                return HandleKind.INT, [(offset, -1)]
        raise ValueError("pk_is_handle, but no column has the primary key flag")
    if info.get("is_common_handle"):
        for index in raw_indexes:
            if index.get("is_primary"):
                return HandleKind.COMMON, [(int(c["offset"]), int(c["length"])) for c in index["idx_cols"]]
        raise ValueError("is_common_handle, but there is no primary index")
    return HandleKind.ROW_ID, []


def _not_null_unique(index: dict[str, Any], raw_columns: list[dict[str, Any]]) -> bool:
    """TiCDC's IsIndexUnique: the primary key, or a unique key whose columns are all NOT NULL and in the row."""
    if index.get("is_primary"):
        return True
    if not index.get("is_unique"):
        return False
    parts = [raw_columns[int(part["offset"])] for part in index["idx_cols"]]
    return all(int(raw["type"]["Flag"]) & MysqlFlag.NOT_NULL and _visible(raw) for raw in parts)


def _handle_index_id(kind: HandleKind, raw_columns: list[dict[str, Any]], raw_indexes: list[dict[str, Any]]) -> int:
    if kind is not HandleKind.ROW_ID:
        return HANDLE_INDEX_PK_IS_HANDLE
    usable = [index for index in raw_indexes if _not_null_unique(index, raw_columns)]
    if not usable:
        return HANDLE_INDEX_NONE
    best = min(usable, key=lambda index: (not index.get("is_primary"), len(index["idx_cols"]), int(index["id"])))
    return int(best["id"])


def _cdc_flags(
    raw_columns: list[dict[str, Any]], raw_indexes: list[dict[str, Any]], handle_index_id: int
) -> list[CdcFlag]:
    flags = [_own_flags(raw, handle_index_id) for raw in raw_columns]
    for index in raw_indexes:
        mark = CdcFlag.PRIMARY_KEY if index.get("is_primary") else CdcFlag(0)
        if not mark and index.get("is_unique"):
            mark = CdcFlag.UNIQUE_KEY
        if len(index["idx_cols"]) > 1:
            mark |= CdcFlag.MULTIPLE_KEY
        if int(index["id"]) == handle_index_id:
            mark |= CdcFlag.HANDLE_KEY
        for part in index["idx_cols"]:
            flags[int(part["offset"])] |= mark
    return flags


def _own_flags(raw: dict[str, Any], handle_index_id: int) -> CdcFlag:
    """The flags that come from the column's own FieldType."""
    mysql_flag = int(raw["type"]["Flag"])
    flag = CdcFlag.BINARY if raw["type"]["Charset"] == "binary" else CdcFlag(0)
    if _generated(raw):
        flag |= CdcFlag.GENERATED
    if mysql_flag & MysqlFlag.PRIMARY_KEY:
        flag |= CdcFlag.PRIMARY_KEY
        if handle_index_id == HANDLE_INDEX_PK_IS_HANDLE:
            flag |= CdcFlag.HANDLE_KEY
    if mysql_flag & MysqlFlag.UNIQUE_KEY:
        flag |= CdcFlag.UNIQUE_KEY
    if not mysql_flag & MysqlFlag.NOT_NULL:
        flag |= CdcFlag.NULLABLE
    if mysql_flag & MysqlFlag.MULTIPLE_KEY:
        flag |= CdcFlag.MULTIPLE_KEY
    if mysql_flag & MysqlFlag.UNSIGNED:
        flag |= CdcFlag.UNSIGNED
    return flag


def _column(raw: dict[str, Any], offset: int, cdc_flag: CdcFlag, *, whole_in_key: bool) -> ColumnVersion:
    field = raw["type"]
    tp, collation = MysqlType(int(field["Tp"])), str(field["Collate"])
    return _shared_column(
        ColumnVersion(
            id=int(raw["id"]),
            name=ci_name(raw["name"]),
            offset=offset,
            tp=tp,
            mysql_flag=int(field["Flag"]),
            cdc_flag=cdc_flag,
            flen=int(field["Flen"]),
            decimal=int(field["Decimal"]),
            charset=str(field["Charset"]),
            collation=collation,
            elems=tuple(field.get("Elems") or ()),
            default=default_text(raw),
            origin_default=origin_default_text(raw),
            absent_value=absent_value(raw) if offset >= 0 else None,
            generated=_generated(raw),
            stored=bool(raw.get("generated_stored")),
            comment=str(raw.get("comment") or ""),
            in_key=whole_in_key and not needs_restored_data(tp, str(field["Charset"]), collation),
            default_is_expression=bool(raw.get("default_is_expr")),
            hidden=bool(raw.get("hidden")),
        )
    )


@lru_cache(maxsize=4_096)
def _shared_column(column: ColumnVersion) -> ColumnVersion:
    """Return one object for columns that are equal: very many tables mostly look alike."""
    return column


def _index(raw: dict[str, Any], raw_columns: list[dict[str, Any]], offsets: list[int]) -> IndexVersion:
    columns = [int(part["offset"]) for part in raw["idx_cols"]]
    return IndexVersion(
        id=int(raw["id"]),
        name=ci_name(raw["idx_name"]),
        unique=bool(raw.get("is_unique")),
        primary=bool(raw.get("is_primary")),
        column_names=tuple(ci_name(raw_columns[column]["name"]) for column in columns),
        offsets=tuple(offsets[column] for column in columns if offsets[column] >= 0),
    )


def needs_restored_data(tp: MysqlType, charset: str, collation: str) -> bool:
    """Tell whether the row value repeats this key column, because the key holds only its sort key.

    Source: pingcap/tidb ``pkg/types/etc.go``, ``NeedRestoredData`` (new collations on, TiDB's default since 6.0).
    """
    strings = {MysqlType.VARCHAR, MysqlType.VAR_STRING, MysqlType.STRING}
    blobs = {MysqlType.TINYBLOB, MysqlType.BLOB, MysqlType.MEDIUMBLOB, MysqlType.LONGBLOB}
    if tp not in strings | blobs or charset == "binary" or collation == "utf8mb4_0900_bin":
        return False
    pads = tp in {MysqlType.VARCHAR, MysqlType.VAR_STRING}
    return pads or not (collation == "binary" or collation.endswith("_bin"))
