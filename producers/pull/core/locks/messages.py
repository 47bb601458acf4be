"""What a lock resolution asks of TiKV, and what comes back (kvrpcpb, docs/formats/cdcpb.md §7). All keys are raw.

Every answer names the request that it answers, so that a late or repeated one is known for what it is.
"""

from dataclasses import dataclass

from schemas.ids import Ts, physical_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenLock:
    """One lock, as ``kvrpcpb.LockInfo`` tells it; keys are raw."""

    key: bytes
    primary: bytes
    start_ts: Ts
    ttl_ms: int
    txn_size: int = 0
    use_async_commit: bool = False
    min_commit_ts: Ts = Ts(0)
    secondaries: tuple[bytes, ...] = ()
    holds: bool = True
    """False for pessimistic and shared locks: they promise no data, so they hold no resolved ts back."""

    def expired(self, now: Ts) -> bool:
        """Say whether its TTL has run out by PD's clock."""
        return physical_ms(self.start_ts) + self.ttl_ms <= physical_ms(now)


# -- requests -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scan:
    """List the locks in ``[start, end)`` of transactions up to ``max_version``. Answer: Scanned, Unreached, Refused."""

    start: bytes
    end: bytes
    max_version: Ts


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTxn:
    """Ask a primary how its transaction stands. Answer: Status, TxnNotFound, PrimaryMismatch, Unreached, Refused."""

    primary: bytes
    start_ts: Ts
    current_ts: Ts
    caller_start_ts: Ts = Ts(0)
    """A reader's version: a live transaction is pushed to commit above it. 0: nobody reads, and none is pushed."""
    rollback_if_not_exist: bool = False
    force_sync_commit: bool = False


@dataclass(frozen=True, slots=True)
class CheckSecondaries:
    """Ask for the locks of an async commit. Answer, for each region: Secondaries, Unreached, Refused."""

    keys: tuple[bytes, ...]
    start_ts: Ts


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolve:
    """End a transaction's locks: commit, or roll back at commit_ts 0. Answer, for each region: Resolved, ….

    ``lite``: these keys only; else all its locks in the regions of these keys.
    """

    keys: tuple[bytes, ...]
    start_ts: Ts
    commit_ts: Ts
    lite: bool


@dataclass(frozen=True, slots=True)
class WaitMs:
    """Answer Woken after so many milliseconds."""

    ms: int


@dataclass(frozen=True, slots=True)
class Determined:
    """No request: a transaction's end is known for good, and other regions need not ask. commit_ts 0: rolled back."""

    start_ts: Ts
    commit_ts: Ts


Asked = Scan | CheckTxn | CheckSecondaries | Resolve
Request = Asked | WaitMs | Determined

# -- messages -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BeginScan:
    """``now`` is a TSO."""

    now: Ts


@dataclass(frozen=True, slots=True)
class Scanned:
    """A page of locks, and where the next one starts (None: the range is done)."""

    request: Scan
    locks: tuple[SeenLock, ...]
    next_start: bytes | None


@dataclass(frozen=True, slots=True)
class Status:
    """What CheckTxnStatus said. ``lock``: the primary's lock, if it still stands; ``pushed``: it commits above the
    caller's version, if it does."""

    request: CheckTxn
    ttl_ms: int
    commit_ts: Ts
    lock: SeenLock | None = None
    pushed: bool = False


@dataclass(frozen=True, slots=True)
class TxnNotFound:
    """The primary has neither a lock nor a record of the transaction (its prewrite may still be under way)."""

    request: CheckTxn


@dataclass(frozen=True, slots=True)
class PrimaryMismatch:
    """The key asked is locked by the transaction, but says that another key is its primary."""

    request: CheckTxn
    primary: bytes


@dataclass(frozen=True, slots=True)
class Secondaries:
    """One region's answer. Fewer locks than keys: the transaction has ended, at ``commit_ts`` (0: rolled back)."""

    request: CheckSecondaries
    keys: tuple[bytes, ...]
    locks: tuple[SeenLock, ...]
    commit_ts: Ts


@dataclass(frozen=True, slots=True)
class Resolved:
    """The locks on these keys are gone."""

    request: Resolve
    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Unreached:
    """A region error or a store that did not answer; ask again. ``keys``: of a request with several."""

    request: Asked
    keys: tuple[bytes, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """An answer that asking again does not change."""

    request: Asked
    reason: str


@dataclass(frozen=True, slots=True)
class Woken:
    """A wait is over. ``now`` is a TSO."""

    now: Ts


Message = (
    BeginScan | Scanned | Status | TxnNotFound | PrimaryMismatch | Secondaries | Resolved | Unreached | Refused | Woken
)
