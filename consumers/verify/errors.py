"""What can keep a table from being compared."""

from schemas.errors import Action, BusError


class NoAncientRowsError(BusError):
    """The source to compare with is no TiDB: it cannot show what it held at a ts."""

    code, action = "verify.source_is_no_tidb", Action.STOP_CHANGEFEED


class NothingAppliedError(BusError):
    """The destination knows nothing of the changefeed: no processor has begun there yet."""

    code, action = "verify.nothing_applied", Action.RETRY


class TableInMotionError(BusError):
    """A DDL is under way, or a table's definition has changed meanwhile, for longer than the time that was given."""

    code, action = "verify.table_in_motion", Action.RETRY


class RowTooLongError(BusError):
    """A server makes no hash of a row: its text is longer than ``max_allowed_packet``, which must be raised there."""

    code, action = "verify.row_too_long", Action.STOP_CHANGEFEED
