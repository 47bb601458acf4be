"""The states of one changefeed, and the rules that decide them (docs/formats/cluster.md §4).

                      created
                         |
                         v          waits for a table of its upstream
        +----------> NORMAL ---------------------------------> WARNING
        |             |  ^ ^   waits for none, and no error       |  |
        |             |  | +---------------------------------------  |
        | resume      |  |     or the checkpoint has moved since  |
        |             |  |              back-off is over          |
        |   error that may heal  +------- PENDING <---------------+ error that may heal
        |             +----------------->  |  |
        |                                  |  | back-off's total time is over
        |      NORMAL, WARNING:            |  |      any but finished and removed:
        |      target reached       pause  |  |      error that does not heal, or history gone
        |             |                    v  v                        |
        +--------- FINISHED             STOPPED, FAILED <--------------+
        +------------------------------------+
        any: remove --> REMOVED, for good

NORMAL, WARNING and PENDING can be paused; STOPPED, FAILED and FINISHED resumed. A sorter runs in NORMAL and WARNING,
and in no other. Each change to a state where none runs gives a new **epoch**, and what a sorter says under an older
epoch is not heard: it may be on its way from one that should have stopped. Resuming with another checkpoint is the only
way back for a checkpoint. A table of the upstream that is behind (no leader, a long first scan) makes a warning, too:
its sorter runs and waits, and it never fails for that. TiCDC's state "" (not initialised) is not needed: a
changefeed is created as NORMAL.

Pure: time is in the messages (seconds of any one clock), and jitter is an argument. What must be done follows from the
state: a sorter of the feed's epoch runs from its checkpoint exactly while :attr:`Feed.runs`; removed nodes are deleted.
"""

from dataclasses import dataclass, field, replace
from typing import Final, assert_never

from consumers.control.core.changefeeds.errors import FeedError, fails_at_once
from schemas.errors import InvariantBrokenError
from schemas.ids import Ts
from schemas.nodes.changefeed import RUNNING, ChangefeedState

RESUMABLE: Final[frozenset[ChangefeedState]] = frozenset({"stopped", "failed", "finished"})
PAUSABLE: Final[frozenset[ChangefeedState]] = frozenset({"normal", "warning", "pending"})
ADMIN_JOBS: Final[dict[ChangefeedState, int]] = {
    "normal": 0,
    "warning": 0,
    "pending": 1,
    "stopped": 1,
    "failed": 1,
    "finished": 4,
    "removed": 3,
}
"""``admin_job_type`` as TiCDC's API shows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to try again. TiCDC's values; a bus on one machine, whose parts come back in seconds, may be quicker."""

    first_s: float = 10.0
    factor: float = 2.0
    interval_s_max: float = 600.0
    total_s: float = 1800.0
    """``changefeed-error-stuck-duration``: for all tries since the first error."""
    jitter_max: float = 0.1

    def __post_init__(self) -> None:
        if not (0 < self.first_s <= self.interval_s_max and self.factor >= 1 and 0 <= self.jitter_max < 1):
            raise InvariantBrokenError("back-off cannot be so", patience=self)

    def interval_s(self, attempt: int, jitter: float) -> float:
        """Return the wait after try number ``attempt``, from 0; ``jitter`` from -1 to 1 is the share of its bound."""
        whole = min(self.first_s * self.factor ** min(attempt, 64), self.interval_s_max)
        return min(whole * (1 + max(-1.0, min(jitter, 1.0)) * self.jitter_max), self.interval_s_max)


PATIENCE: Final = Patience()


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying:
    """From the first error after good times to the next good times."""

    since_s: float
    attempt: int
    retry_at_s: float
    """When PENDING ends; in WARNING it lies in the past."""
    reached_ts: Ts
    """Of the last error: it must be passed before all is well again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """What is known of one changefeed: state, ts, errors and epoch are stored, the rest begins anew with a process."""

    state: ChangefeedState = "normal"
    checkpoint_ts: Ts
    resolved_ts: Ts
    start_ts: Ts
    applied_ts: Ts | None = None
    """How far the destination is, where processors write there and it was asked for; None: as the checkpoint."""
    target_ts: Ts | None = None
    epoch: int = 0
    error: FeedError | None = None
    held: FeedError | None = None
    """Which tables of the upstream it waits for, and why."""
    retrying: Retrying | None = None
    patience: Patience = field(default=PATIENCE)

    @property
    def runs(self) -> bool:
        """Whether a sorter should run, from the checkpoint, under the epoch."""
        return self.state in RUNNING

    @property
    def reached_ts(self) -> Ts:
        """What must move after an error before all is well: of a destination that processors write to, its own ts, for
        their sorter goes on whatever becomes of it."""
        return self.checkpoint_ts if self.applied_ts is None else self.applied_ts


@dataclass(frozen=True, slots=True)
class Tick:
    """In: time passes."""

    now_s: float


@dataclass(frozen=True, slots=True)
class SorterProgress:
    """In: the sorter of ``epoch`` has come so far."""

    epoch: int
    checkpoint_ts: Ts
    resolved_ts: Ts
    now_s: float
    applied_ts: Ts | None = None
    """See :attr:`Feed.applied_ts`."""


@dataclass(frozen=True, slots=True)
class Failed:
    """In: an error. ``epoch`` is the sorter's; None: not a sorter's, but seen from outside (history gone)."""

    error: FeedError
    now_s: float
    epoch: int | None = None
    jitter: float = 0.0


@dataclass(frozen=True, slots=True)
class WaitsForTables:
    """In: it waits for tables of its upstream, or (None) for none any more."""

    why: FeedError | None


@dataclass(frozen=True, slots=True)
class Pause:
    """In: the user wants it stopped."""


@dataclass(frozen=True, slots=True)
class Resume:
    """In: the user wants it to go on, from its checkpoint or another."""

    overwrite_checkpoint_ts: Ts | None = None


@dataclass(frozen=True, slots=True)
class RemoveFeed:
    """In: the user wants it gone."""


Message = Tick | SorterProgress | Failed | WaitsForTables | Pause | Resume | RemoveFeed


def step(feed: Feed, message: Message) -> Feed:
    """Take one message. What the state does not allow is ignored, as TiCDC does: its API answers 200."""
    if feed.state == "removed":
        return feed
    match message:
        case Tick(now_s):
            return _on_tick(feed, now_s)
        case SorterProgress():
            return _on_progress(feed, message) if _is_current(feed, message.epoch) else feed
        case Failed():
            current = message.epoch is None or _is_current(feed, message.epoch)
            return _on_failed(feed, message) if current else feed
        case WaitsForTables(why):
            return _on_held(feed, why) if feed.runs else feed
        case Pause():
            return _rest(feed, "stopped") if feed.state in PAUSABLE else feed
        case Resume(ts):
            return _on_resume(feed, ts) if feed.state in RESUMABLE else feed
        case RemoveFeed():
            return _rest(feed, "removed")
        case _:
            assert_never(message)


def _is_current(feed: Feed, epoch: int) -> bool:
    return feed.runs and epoch == feed.epoch


def _on_tick(feed: Feed, now_s: float) -> Feed:
    if feed.state != "pending":
        return feed
    retrying = feed.retrying
    if retrying is None:  # stored as pending by another process, whose clock is not ours: its wait begins anew
        wait_s = feed.patience.interval_s(0, 0.0)
        first = Retrying(since_s=now_s, attempt=0, retry_at_s=now_s + wait_s, reached_ts=feed.reached_ts)
        return replace(feed, retrying=first)
    if now_s < retrying.retry_at_s:
        return feed
    if now_s - retrying.since_s > feed.patience.total_s:
        return _rest(feed, "failed")
    return replace(feed, state="warning")


def _on_progress(feed: Feed, message: SorterProgress) -> Feed:
    feed = replace(
        feed,
        checkpoint_ts=max(feed.checkpoint_ts, message.checkpoint_ts),
        resolved_ts=max(feed.resolved_ts, message.resolved_ts, message.checkpoint_ts),
        applied_ts=message.applied_ts,
    )
    if feed.target_ts is not None and feed.checkpoint_ts >= feed.target_ts:
        return _rest(replace(feed, error=None, retrying=None), "finished")
    if feed.retrying is not None and feed.reached_ts > feed.retrying.reached_ts:
        feed = replace(feed, error=None, retrying=None)
    return _on_held(feed, feed.held)


def _on_failed(feed: Feed, message: Failed) -> Feed:
    if feed.state in ("failed", "finished"):
        return feed
    if fails_at_once(message.error):
        return _rest(replace(feed, error=message.error), "failed")
    if not feed.runs:
        return feed
    last = feed.retrying
    attempt = last.attempt + 1 if last else 0
    retrying = Retrying(
        since_s=last.since_s if last else message.now_s,
        attempt=attempt,
        retry_at_s=message.now_s + feed.patience.interval_s(attempt, message.jitter),
        reached_ts=feed.reached_ts,
    )
    return _rest(replace(feed, error=message.error, retrying=retrying), "pending")


def _on_held(feed: Feed, why: FeedError | None) -> Feed:
    """A warning while it waits for a table, or has not moved since its last error."""
    is_well = why is None and feed.retrying is None
    if is_well:
        return replace(feed, held=None, error=None, state="normal")
    return replace(feed, held=why, state="warning")


def _on_resume(feed: Feed, overwrite_ts: Ts | None) -> Feed:
    """Forget errors and run; an overwritten checkpoint becomes the start ts too, as TiCDC writes it."""
    if overwrite_ts is not None:
        feed = replace(feed, checkpoint_ts=overwrite_ts, resolved_ts=overwrite_ts, start_ts=overwrite_ts)
    return replace(feed, state="normal", error=None, held=None, retrying=None)


def _rest(feed: Feed, state: ChangefeedState) -> Feed:
    """Go to a state without a sorter, under a new epoch."""
    return replace(feed, state=state, held=None, epoch=feed.epoch + 1)
