"""The prologue of a changefeed that starts before the raw log began: a node of the changefeed, ``prologue``, JSON.

A prologue is a raw log of its own (three topics, :attr:`Prologue.log`) that holds the changes of the changefeed's
tables in ``(start_ts, end_ts]``. ``end_ts`` is the resolved ts of a published frontier record, fixed at creation::

    wanted --begun--> attempt 1 --completed--> complete --the checkpoint has passed end_ts--> the node goes, topics too
                        |    ^                                        |
                        '----'  begun: attempt 2, topics of its own   '-- the sorter: below end_ts it runs this log,
                   the owner has died, or the attempt has failed          from end_ts on the upstream's

Each attempt lands into topics of its own, so nothing of a dead owner's can come into what is read. A step is written by
compare-and-set, so what a replaced owner still has to say of its attempt is not heard. Which log a sorter reads follows
from the node and the checkpoint alone (:func:`log_at`), and a complete log never changes: a replay writes the same.
"""

import json
import re
from dataclasses import dataclass, replace
from typing import Final

from schemas.errors import CorruptDataError, InvariantBrokenError
from schemas.ids import Ts, UpstreamId
from schemas.json_text import read_bool, read_int, read_json, read_text

PROLOGUES: Final = "prologue"
"""Topics of prologues begin with ``tidebus.prologue.``: rights to delete can be given for these alone."""
_LIFE: Final = re.compile(r"[a-zA-Z0-9-]{1,128}\.[0-9a-f]{16}")
_TS_BITS: Final = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class PrologueFailure:
    """Why no attempt is of use any more, as long as nobody lets the changefeed go on."""

    epoch: int
    """Of the changefeed, when that was seen: its sorter fails under this one."""
    code: str
    message: str
    failed_at_s: int = 0
    """Unix time by the owner's clock; 0: a version that noted none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prologue:
    """See the module."""

    life: str
    """Names it: the cluster, a dot, and something random; no other prologue ever had it."""
    start_ts: Ts
    """Exclusive: the changefeed's start ts."""
    end_ts: Ts
    """Inclusive: where the upstream's raw log takes over."""
    attempt: int = 0
    """The one that was begun last; 0: none yet."""
    is_complete: bool = False
    """Everything of the attempt has landed, and its frontier is published."""
    failure: PrologueFailure | None = None

    @property
    def log(self) -> UpstreamId:
        """What the topics of the attempt are named by (:func:`schemas.rawlog.topics.raw_topics`)."""
        return UpstreamId(f"{PROLOGUES}.{self.life}.{self.attempt}")

    @property
    def holder(self) -> UpstreamId:
        """What its hold on TiKV's history is named by, whichever attempt runs."""
        return UpstreamId(f"{PROLOGUES}.{self.life}")


def begun(prologue: Prologue) -> Prologue:
    """Return it with a new attempt, which has begun nothing yet.

    Raises:
        InvariantBrokenError: it is complete.
    """
    if prologue.is_complete:
        raise InvariantBrokenError("a complete prologue is begun again", life=prologue.life)
    return replace(prologue, attempt=prologue.attempt + 1, failure=None)


def completed(prologue: Prologue, attempt: int) -> Prologue:
    """Return it with an attempt that is complete.

    Raises:
        InvariantBrokenError: another attempt has begun since.
    """
    if prologue.attempt != attempt:
        raise InvariantBrokenError("a late attempt at a prologue is completed", life=prologue.life, attempt=attempt)
    return replace(prologue, is_complete=True, failure=None)


def log_at(prologue: Prologue | None, upstream: UpstreamId, checkpoint_ts: Ts) -> UpstreamId | None:
    """Return which raw log a changefeed runs from its checkpoint on; None: it is not complete yet.

    Args:
        prologue: None: the changefeed has none, or none any more.
        upstream: the changefeed's.
        checkpoint_ts: everything up to it is downstream.
    """
    if prologue is None or checkpoint_ts >= prologue.end_ts:
        return upstream
    return prologue.log if prologue.is_complete else None


def is_over(prologue: Prologue, checkpoint_ts: Ts) -> bool:
    """Tell whether its topics are of no more use: the upstream's log has brought the changefeed further."""
    return checkpoint_ts > prologue.end_ts


def is_prologue(upstream: UpstreamId) -> bool:
    """Tell whether topics named so are of a prologue's attempt."""
    return upstream.startswith(f"{PROLOGUES}.")


def log_of_topic(topic: str, cluster: str) -> UpstreamId | None:
    """Return which prologue's log a topic belongs to; None: to none of this cluster's.

    >>> log_of_topic("tidebus.prologue.default.00f0e1d2c3b4a596.1.ddl", "default")
    'prologue.default.00f0e1d2c3b4a596.1'
    """
    match = re.fullmatch(rf"tidebus\.({PROLOGUES}\.{re.escape(cluster)}\.[0-9a-f]{{16}}\.\d+)\.[a-z-]+", topic)
    return None if match is None else UpstreamId(match[1])


def encode_prologue(prologue: Prologue) -> bytes:
    """Return the node's bytes."""
    failure = prologue.failure
    return json.dumps(
        {
            "life": prologue.life,
            "start_ts": prologue.start_ts,
            "end_ts": prologue.end_ts,
            "attempt": prologue.attempt,
            "is_complete": prologue.is_complete,
            "failure": failure
            and {
                "epoch": failure.epoch,
                "code": failure.code,
                "message": failure.message,
                "failed_at_s": failure.failed_at_s,
            },
        }
    ).encode()


def decode_prologue(node: bytes) -> Prologue:
    """Read a ``prologue`` node.

    Raises:
        CorruptDataError: not JSON, a field is missing, or what is in it cannot be.
    """
    try:
        raw = read_json(node)
        prologue = Prologue(
            life=read_text(raw["life"]),
            start_ts=Ts(read_int(raw["start_ts"], bits=_TS_BITS)),
            end_ts=Ts(read_int(raw["end_ts"], bits=_TS_BITS)),
            attempt=read_int(raw["attempt"], bits=31),
            is_complete=read_bool(raw["is_complete"]),
            failure=None if raw["failure"] is None else _failure(raw["failure"]),
        )
        if not prologue.start_ts < prologue.end_ts or (prologue.is_complete and not prologue.attempt):
            raise ValueError("it ends before it begins")
        if _LIFE.fullmatch(prologue.life) is None:  # it becomes part of names of topics
            raise ValueError(f"{prologue.life[:80]!r} names no prologue")
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError("prologue does not decode", node=node[:200], reason=repr(error)) from error
    return prologue


def _failure(raw: dict[str, object]) -> PrologueFailure:
    return PrologueFailure(
        epoch=read_int(raw["epoch"], bits=_TS_BITS),
        code=read_text(raw["code"]),
        message=read_text(raw["message"]),
        failed_at_s=read_int(raw.get("failed_at_s", 0), bits=_TS_BITS),
    )
