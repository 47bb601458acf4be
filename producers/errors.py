"""Errors of the producer's edges: PD, TiKV, Kafka, the schema registry. Those of pure cores stand beside them."""

from typing import ClassVar

from schemas.errors import Action, BusError


class PdUnreachableError(BusError):
    """No PD member answered in time; ``fields`` name the call, the addresses, the tries and the last reply."""

    code, action = "producer.pd_unreachable", Action.RETRY


class PdRefusedError(BusError):
    """PD answered with an error that trying again does not mend."""

    code, action = "producer.pd_refused", Action.STOP_CHANGEFEED


class PdUnimplementedError(PdRefusedError):
    """This PD is older than the call."""

    code = "producer.pd_unimplemented"


class TlsFileError(BusError):
    """A CA, certificate or key file is missing or unusable; ``fields`` name the file and the reason."""

    code, action = "producer.tls_file", Action.STOP_CHANGEFEED


class TlsRefusedError(BusError):
    """A server and we do not trust each other: expired, wrong CA, wrong name. ``fields`` name address and reason."""

    code, action = "producer.tls_refused", Action.STOP_CHANGEFEED


class RegionMovedError(BusError):
    """A store does not serve the region as we know it, or did not answer; the cache has dropped what was wrong."""

    code, action = "producer.region_moved", Action.RETRY

    wait_ms: int = 0
    """The store wants to be left alone so long."""
    is_too_much: bool = False
    """The answer did not come in time, or is larger than what is taken."""
    is_late: bool = False
    """It did not come in time."""


class KvRefusedError(BusError):
    """A store refuses a call in a way that trying again does not mend (it does not know the call)."""

    code, action = "producer.kv_refused", Action.STOP_CHANGEFEED


class RegionsUnknownError(BusError):
    """PD does not (yet) know regions for a range: a hole, or no region at all."""

    code, action = "producer.regions_unknown", Action.RETRY


class StoreUnavailableError(BusError):
    """A TiKV store is gone, down, or not for us (TiFlash)."""

    code, action = "producer.store_unavailable", Action.RETRY


class HistoryGoneError(BusError):
    """TiKV's garbage collection has passed the ts from which changes are wanted (TiCDC: CDC:ErrSnapshotLostByGC)."""

    code, action = "producer.history_gone", Action.STOP_CHANGEFEED


class SnapshotFailedError(BusError):
    """The schema snapshot could not be read; ``fields`` name the key range and the store's answer."""

    code, action = "producer.snapshot_failed", Action.RETRY


class ImageScanStalledError(BusError):
    """A scan of a table image read nothing in its time; ``fields`` say what was in its way. The range comes again."""

    code, action = "producer.image_scan_stalled", Action.RETRY


class ImageVersionGoneError(BusError):
    """Garbage collection of TiKV has passed the barrier ts of a table image's scan. It comes again, at a later one."""

    code, action = "producer.image_version_gone", Action.RETRY


class DeliveryFailedError(BusError):
    """The broker did not take a record. Its rows are not counted as landed; they come again after a restart."""

    code, action = "producer.delivery_failed", Action.RETRY


class LandingHaltedError(BusError):
    """This capture may not land any more; whoever gets its spans lands the same rows."""

    code, action = "producer.landing_halted", Action.RETRY


class RowTooLargeError(BusError):
    """One row is larger than any of TiDB's; ``fields`` name table, key and commit_ts, size and limit. Never raised: the
    row's table goes no further, and says so; all others do."""

    code, action = "producer.row_too_large", Action.STOP_CHANGEFEED

    kind: ClassVar = "row_too_large"
    """What status and metrics call it."""


class RowsLostError(BusError):
    """Rows that were matched are not those that are about to be landed: a bug of ours, or broken memory. Never raised:
    their table goes no further, and says so; all others do."""

    code, action = "producer.rows_lost", Action.STOP_CHANGEFEED

    kind: ClassVar = "rows_lost"
    """What status and metrics call it."""


class RawTopicError(BusError):
    """A raw topic could not be created, or does not look as it must."""

    code, action = "producer.raw_topic", Action.RETRY


class RegistryError(BusError):
    """The schema registry refused RegionBatch's schema, or did not answer."""

    code, action = "producer.registry", Action.RETRY


class RegistryRefusedError(RegistryError):
    """The registry answers, and refuses the schema, or us."""


class ProducerBugError(BusError):
    """Something unforeseen ended a producer's thread."""

    code, action = "producer.bug", Action.CRASH
