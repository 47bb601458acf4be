"""Which errors a changefeed gets over by itself, by their codes: TiCDC's (docs/formats/cluster.md §4) and ours."""

from dataclasses import dataclass
from typing import Final

from schemas.nodes.failures import StoppingDdl

GC_CODES: Final = (
    "ErrGCTTLExceeded",
    "ErrSnapshotLostByGC",
    "ErrStartTsBeforeGC",
    "sorter.history_lost",
    "schema.history_gone",
    "producer.history_gone",
    "frontier.lost",
)
"""History that the changefeed needs is gone: it has failed for good, and holds nothing back any more."""

UNRETRYABLE_CODES: Final = (
    "ErrExpressionColumnNotFound",
    "ErrExpressionParseFailed",
    "ErrSchemaSnapshotNotFound",
    "ErrSyncRenameTableFailed",
    "ErrChangefeedUnretryable",
    "ErrCorruptedDataMutation",
    "ErrDispatcherFailed",
    "ErrColumnSelectorFailed",
    "ErrSinkURIInvalid",
    "ErrKafkaInvalidConfig",
    "ErrMySQLInvalidConfig",
    "ErrStorageSinkInvalidConfig",
)
"""Errors that come again until an operator has changed something. Of ours, every error says so itself (``Action``)."""


TABLE_HELD: Final = "changefeed.table_held"
UPSTREAM_STANDS: Final = "changefeed.upstream_stands"
WAITS: Final = frozenset({TABLE_HELD, UPSTREAM_STANDS})
"""Codes of warnings: tables of the upstream are behind, or all of it is, and the changefeed waits."""

NEEDS_CHECKPOINT: Final = frozenset({"apply.flow_broken", "apply.fence_went_back"})
"""Codes of errors after which a resume says from where: what processors would go on with cannot be proven, or is passed
over. Another checkpoint gives the changefeed another topic, whose rows are written and proven from there on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedError:
    """An error or a warning, as the API shows it."""

    code: str
    message: str
    time: str = ""
    """RFC 3339."""
    addr: str = ""
    """Of the capture where it came up; empty: a sorter's own process."""
    may_heal: bool = True
    """Ours: its action is to retry. What TiCDC's codes say comes on top of it."""
    ddl: StoppingDdl | None = None
    """That the sink cannot follow."""


def is_gc_error(error: FeedError) -> bool:
    """Tell whether history is gone. A substring test over code and message, as TiCDC: codes come wrapped in others."""
    return _holds(error, GC_CODES)


def needs_checkpoint(error: FeedError) -> bool:
    """Tell whether a changefeed that failed so goes on from a checkpoint that is said alone."""
    return error.code in NEEDS_CHECKPOINT


def fails_at_once(error: FeedError) -> bool:
    """Tell whether trying again is of no use."""
    return not error.may_heal or is_gc_error(error) or _holds(error, UNRETRYABLE_CODES)


def _holds(error: FeedError, codes: tuple[str, ...]) -> bool:
    text = f"{error.code} {error.message}"
    return any(code in text for code in codes)
