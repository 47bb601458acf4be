"""TiDB's TableInfo JSON as a version of a table.

The rules for handle key, flags and eligibility are TiCDC's (``cdc/model/schema_storage.go``: ``WrapTableInfo``,
``findHandleIndex``, ``initColumnsFlag``), with one difference: columns and indexes that are not public belong to a DDL
under way and are invisible here.
"""

from collections.abc import Sequence
from functools import lru_cache

from schemas.errors import CorruptDataError
from schemas.ids import TableId, Ts
from schemas.tidb.info_json import (
    JsonObject,
    ci_name,
    number_in,
    object_in,
    objects_in,
    optional_object_in,
    optional_objects_in,
    text_in,
    texts_in,
)
from schemas.tidb.mysql_types import SCHEMA_STATE_PUBLIC, CdcFlag, MysqlFlag, MysqlType
from schemas.tidb.origin_default import absent_value, default_text, origin_default_text
from schemas.tidb.table import (
    HANDLE_INDEX_NONE,
    HANDLE_INDEX_PK_IS_HANDLE,
    ColumnVersion,
    HandleKind,
    IndexVersion,
    PartitionVersion,
    TableVersion,
    needs_restored_data,
)


def table_version(info: JsonObject, *, schema_id: int, schema: str, version: Ts) -> TableVersion:
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


def enabled_partitions(info: JsonObject) -> tuple[PartitionVersion, ...]:
    """Return the partitions of a TableInfo; empty for a table without them."""
    partition = optional_object_in(info, "partition")
    if not partition or not partition.get("enable"):
        return ()
    return tuple(
        PartitionVersion(id=TableId(number_in(part, "id")), name=ci_name(part["name"]))
        for part in optional_objects_in(partition, "definitions")
    )


def is_eligible(info: JsonObject) -> bool:
    """Tell from the JSON alone what ``TableVersion.eligible`` will be; cheap, for stores of many tables."""
    if info.get("sequence"):
        return False
    if info.get("view") or info.get("pk_is_handle") or info.get("is_common_handle"):
        return True
    columns = objects_in(info, "cols")
    return any(_not_null_unique(index, columns) for index in optional_objects_in(info, "index_info") if _public(index))


def _build(info: JsonObject, schema_id: int, schema: str, version: Ts) -> TableVersion:
    raw_columns = optional_objects_in(info, "cols")
    raw_indexes = [index for index in optional_objects_in(info, "index_info") if _public(index)]
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
        table_id=TableId(number_in(info, "id")),
        version=version,
        update_ts=Ts(number_in(info, "update_timestamp", 0)),
        columns=tuple(column for column in all_columns if column.visible),
        all_columns=all_columns,
        indexes=indexes,
        index_columns_offset=((key_columns, *unique) if kind is HandleKind.INT else tuple(unique)),
        handle_kind=kind,
        handle_index_id=handle_index_id,
        handle_columns=handle,
        key_columns=key_columns,
        partitions=enabled_partitions(info),
        charset=text_in(info, "charset"),
        collation=text_in(info, "collate"),
        is_view=bool(info.get("view")),
        is_sequence=bool(info.get("sequence")),
        eligible=is_eligible(info),
        soft_deletes=bool(info.get("is_active_active")) or info.get("softdelete_info") is not None,
        active_active=bool(info.get("is_active_active")),
    )


def _public(part: JsonObject) -> bool:
    return number_in(part, "state") == SCHEMA_STATE_PUBLIC


def _generated(raw: JsonObject) -> bool:
    return bool(raw.get("generated_expr_string"))


def _visible(raw: JsonObject) -> bool:
    return _public(raw) and not (_generated(raw) and not raw.get("generated_stored"))


def _visible_offsets(raw_columns: Sequence[JsonObject]) -> list[int]:
    offsets, next_offset = [], 0
    for raw in raw_columns:
        visible = _visible(raw)
        offsets.append(next_offset if visible else -1)
        next_offset += visible
    return offsets


def _row_key(
    info: JsonObject, raw_columns: Sequence[JsonObject], raw_indexes: Sequence[JsonObject]
) -> tuple[HandleKind, list[tuple[int, int]]]:
    """Return what the row key holds: offsets in ``raw_columns`` with the prefix length (-1: the whole column)."""
    if info.get("pk_is_handle"):
        for offset, raw in enumerate(raw_columns):
            if _flag(raw) & MysqlFlag.PRIMARY_KEY:
                return HandleKind.INT, [(offset, -1)]
        raise ValueError("pk_is_handle, but no column has the primary key flag")
    if info.get("is_common_handle"):
        for index in raw_indexes:
            if index.get("is_primary"):
                return HandleKind.COMMON, [
                    (number_in(part, "offset"), number_in(part, "length")) for part in objects_in(index, "idx_cols")
                ]
        raise ValueError("is_common_handle, but there is no primary index")
    return HandleKind.ROW_ID, []


def _not_null_unique(index: JsonObject, raw_columns: Sequence[JsonObject]) -> bool:
    """TiCDC's IsIndexUnique: the primary key, or a unique key whose columns are all NOT NULL and in the row."""
    if index.get("is_primary"):
        return True
    if not index.get("is_unique"):
        return False
    parts = [raw_columns[number_in(part, "offset")] for part in objects_in(index, "idx_cols")]
    return all(_flag(raw) & MysqlFlag.NOT_NULL and _visible(raw) for raw in parts)


def _handle_index_id(kind: HandleKind, raw_columns: Sequence[JsonObject], raw_indexes: Sequence[JsonObject]) -> int:
    if kind is not HandleKind.ROW_ID:
        return HANDLE_INDEX_PK_IS_HANDLE
    usable = [index for index in raw_indexes if _not_null_unique(index, raw_columns)]
    if not usable:
        return HANDLE_INDEX_NONE
    best = min(
        usable,
        key=lambda index: (not index.get("is_primary"), len(objects_in(index, "idx_cols")), number_in(index, "id")),
    )
    return number_in(best, "id")


def _cdc_flags(
    raw_columns: Sequence[JsonObject], raw_indexes: Sequence[JsonObject], handle_index_id: int
) -> list[CdcFlag]:
    flags = [_own_flags(raw, handle_index_id) for raw in raw_columns]
    for index in raw_indexes:
        mark = CdcFlag.PRIMARY_KEY if index.get("is_primary") else CdcFlag(0)
        if not mark and index.get("is_unique"):
            mark = CdcFlag.UNIQUE_KEY
        parts = objects_in(index, "idx_cols")
        if len(parts) > 1:
            mark |= CdcFlag.MULTIPLE_KEY
        if number_in(index, "id") == handle_index_id:
            mark |= CdcFlag.HANDLE_KEY
        for part in parts:
            flags[number_in(part, "offset")] |= mark
    return flags


def _flag(raw: JsonObject) -> int:
    """Return the flags that MySQL has for a column."""
    return number_in(object_in(raw, "type"), "Flag")


def _own_flags(raw: JsonObject, handle_index_id: int) -> CdcFlag:
    """The flags that come from the column's own FieldType."""
    is_binary, is_handle = object_in(raw, "type")["Charset"] == "binary", handle_index_id == HANDLE_INDEX_PK_IS_HANDLE
    return _flags_of(_flag(raw), is_binary, _generated(raw), is_handle)


@lru_cache(maxsize=1_024)
def _flags_of(mysql_flag: int, is_binary: bool, generated: bool, is_handle: bool) -> CdcFlag:
    """Put them together: slow by enums of Python's, and few columns differ in them."""
    flag = CdcFlag.BINARY if is_binary else CdcFlag(0)
    if generated:
        flag |= CdcFlag.GENERATED
    if mysql_flag & MysqlFlag.PRIMARY_KEY:
        flag |= CdcFlag.PRIMARY_KEY
        if is_handle:
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


def _column(raw: JsonObject, offset: int, cdc_flag: CdcFlag, *, whole_in_key: bool) -> ColumnVersion:
    field = object_in(raw, "type")
    tp, charset, collation = MysqlType(number_in(field, "Tp")), str(field["Charset"]), str(field["Collate"])
    return _shared_column(
        ColumnVersion(
            id=number_in(raw, "id"),
            name=ci_name(raw["name"]),
            offset=offset,
            tp=tp,
            mysql_flag=number_in(field, "Flag"),
            cdc_flag=cdc_flag,
            flen=number_in(field, "Flen"),
            decimal=number_in(field, "Decimal"),
            charset=charset,
            collation=collation,
            elems=texts_in(field, "Elems"),
            default=default_text(raw),
            origin_default=origin_default_text(raw),
            absent_value=absent_value(raw) if offset >= 0 else None,
            generated=_generated(raw),
            stored=bool(raw.get("generated_stored")),
            comment=text_in(raw, "comment"),
            in_key=whole_in_key and not needs_restored_data(tp, charset, collation),
            whole_in_key=whole_in_key,
            default_is_expression=bool(raw.get("default_is_expr")),
            hidden=bool(raw.get("hidden")),
        )
    )


@lru_cache(maxsize=4_096)
def _shared_column(column: ColumnVersion) -> ColumnVersion:
    """Return one object for columns that are equal: very many tables mostly look alike."""
    return column


def _index(raw: JsonObject, raw_columns: Sequence[JsonObject], offsets: list[int]) -> IndexVersion:
    columns = [number_in(part, "offset") for part in objects_in(raw, "idx_cols")]
    return IndexVersion(
        id=number_in(raw, "id"),
        name=ci_name(raw["idx_name"]),
        unique=bool(raw.get("is_unique")),
        primary=bool(raw.get("is_primary")),
        column_names=tuple(ci_name(raw_columns[column]["name"]) for column in columns),
        offsets=tuple(offsets[column] for column in columns if offsets[column] >= 0),
    )
