"""What stops a changefeed at its lake tables."""

from schemas.errors import Action, BusError


class LakeSchemaError(BusError):
    """A DDL, or a table, that its lake table cannot follow; ``reason`` says why, ``what_helps`` how to go on."""

    code, action = "lake.schema_refused", Action.STOP_CHANGEFEED


class LakeValueError(BusError):
    """A value that its lake column cannot hold."""

    code, action = "lake.value_refused", Action.STOP_CHANGEFEED


class LakeTableGoneError(BusError):
    """A lake table that a run knew is not there any more: somebody has dropped or moved it. Resumed, the changefeed
    makes it anew from its checkpoint on.
    """

    code, action = "lake.table_gone", Action.STOP_CHANGEFEED


class LakeTakenError(BusError):
    """A table of this name stands in the warehouse, and it is not this changefeed's."""

    code, action = "lake.table_taken", Action.STOP_CHANGEFEED


class LakeOvertakenError(BusError):
    """Another process has written a lake table since this one began its commit, which counts for nothing."""

    code, action = "lake.overtaken", Action.RETRY


class LakeWatermarkLostError(BusError):
    """A lake table no longer says how far it is: its snapshots were taken away, or it was restored from elsewhere; or
    main was turned back behind its newest tag."""

    code, action = "lake.watermark_lost", Action.STOP_CHANGEFEED


class LakeJarMissingError(BusError):
    """Spark has not the jar of Iceberg, or its client of S3 where tables stand there."""

    code, action = "lake.jar_missing", Action.STOP_CHANGEFEED
