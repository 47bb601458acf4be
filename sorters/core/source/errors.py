"""What can go wrong with a read of the Spark source, beside what any reader of the raw log may meet."""

from schemas.errors import Action, BusError, ConfigError


class SourceOptionError(ConfigError):
    """An option of the Spark source is missing, or is not allowed; ``fields`` name it."""

    code, action = "source.option", Action.STOP_CHANGEFEED


class SourceTableError(BusError):
    """The upstream has no such table at the ts at which it was looked for, or Spark cannot have its columns."""

    code, action = "source.table", Action.STOP_CHANGEFEED


class SchemaChangedError(BusError):
    """A DDL gave the table other columns than the query has. All changes before it were delivered: start the query
    again from its checkpoint, and load() takes the new columns.
    """

    code, action = "source.schema_changed", Action.STOP_CHANGEFEED


class RowsReplacedError(BusError):
    """A DDL took rows of the table, or brought some, without a change for each: a truncation, a drop, a rename. Do the
    same to what was made of its changes, then start the query again with the option ``passDdlTs``.
    """

    code, action = "source.rows_replaced", Action.STOP_CHANGEFEED


class NotReachedError(BusError):
    """The frontier has not reached the ``endingTs`` of a read, or the end of the image that it starts at."""

    code, action = "source.not_reached", Action.RETRY


class NoImageError(BusError):
    """The log lists no whole image of the table that ``startingTs = image`` could start at: none was taken since the
    table is what it is, or retention has passed it. A changefeed with ``initial = "snapshot"`` takes one.
    """

    code, action = "source.no_image", Action.STOP_CHANGEFEED
