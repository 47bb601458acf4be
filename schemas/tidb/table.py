"""One version of one table, as the mounter, the dispatcher and the encoders see it.

Built from TiDB's TableInfo JSON (:mod:`schemas.tidb.table_info`).
"""

from dataclasses import dataclass
from enum import Enum

from schemas.ids import TableId, Ts
from schemas.tidb.mysql_types import CdcFlag, MysqlFlag, MysqlType
from schemas.tidb.value import Value

# Plain integers: these two are asked for each value of a row, and ``&`` of an IntFlag takes half a microsecond.
_NOT_NULL, _UNSIGNED = int(MysqlFlag.NOT_NULL), int(MysqlFlag.UNSIGNED)
HANDLE_INDEX_PK_IS_HANDLE = -1
"""The row key holds the primary key."""
HANDLE_INDEX_NONE = -2
"""No primary key and no not-null unique key."""
_PLAIN_COLLATIONS = frozenset({"ascii_bin", "latin1_bin", "utf8_bin", "utf8mb4_bin", "binary"})
"""Whose sort key is the text itself, but for blanks at its end. That of ``gbk_bin`` and ``gb18030_bin`` is not."""


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
    """The row key tells the value, whatever the cluster's collations: a part of the clustered primary key, neither
    collated nor a prefix."""
    whole_in_key: bool
    """It is a part of the clustered primary key, and no prefix: what no row value holds the key does. Of a collated
    one the value holds it where the cluster has new collations, for then the key has its sort key; else the key."""
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


def needs_restored_data(tp: MysqlType, charset: str, collation: str) -> bool:
    """Tell whether the row value repeats this key column, because the key holds only its sort key.

    Source: pingcap/tidb ``pkg/types/etc.go``, ``NeedRestoredData``, and ``pkg/util/collate``, ``IsBinCollation`` (new
    collations on, TiDB's default since 6.0).
    """
    strings = {MysqlType.VARCHAR, MysqlType.VAR_STRING, MysqlType.STRING}
    blobs = {MysqlType.TINYBLOB, MysqlType.BLOB, MysqlType.MEDIUMBLOB, MysqlType.LONGBLOB}
    if tp not in strings | blobs or charset == "binary" or collation == "utf8mb4_0900_bin":
        return False
    pads = tp in {MysqlType.VARCHAR, MysqlType.VAR_STRING}
    return pads or collation not in _PLAIN_COLLATIONS
