"""What a store answers to a write that the transaction protocol forbids: the writer resolves, retries or gives up."""

from schemas.errors import Action, BusError
from schemas.ids import Ts


class CommandRefusedError(BusError):
    """Base: the command changed nothing. ``key`` is the first key that stood in its way."""

    code, action = "region_server.refused", Action.RETRY

    def __init__(self, message: str, key: bytes, **fields: object) -> None:
        super().__init__(message, key=key.hex(), **fields)
        self.key = key


class KeyLockedError(CommandRefusedError):
    """Another transaction holds the key: resolve that lock, then try again."""

    code = "region_server.key_locked"


class WriteConflictError(CommandRefusedError):
    """The key has a newer version than the transaction may overwrite, or the transaction was rolled back there."""

    code = "region_server.write_conflict"


class CommitTsExpiredError(CommandRefusedError):
    """The primary's ``min_commit_ts`` was pushed past the commit_ts: take a new one."""

    code = "region_server.commit_ts_expired"

    def __init__(self, message: str, key: bytes, *, start_ts: Ts, commit_ts: Ts, min_commit_ts: Ts) -> None:
        super().__init__(message, key, start_ts=start_ts, commit_ts=commit_ts, min_commit_ts=min_commit_ts)
        self.min_commit_ts = min_commit_ts


class LockNotFoundError(CommandRefusedError):
    """A commit for a key that the transaction neither holds nor has committed: somebody rolled it back."""

    code = "region_server.lock_not_found"


class CommittedError(CommandRefusedError):
    """A rollback for a key that the transaction has committed."""

    code = "region_server.committed"


class TxnNotFoundError(CommandRefusedError):
    """Neither a lock nor a record of the transaction is on what was called its primary key."""

    code = "region_server.txn_not_found"


class PrimaryMismatchError(CommandRefusedError):
    """The lock on the key is of that transaction, but it names another key as its primary."""

    code = "region_server.primary_mismatch"
