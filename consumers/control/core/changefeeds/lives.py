"""What tells the lives of a changefeed apart: each checkpoint that a user sets by hand begins another one. Pure."""

from dataclasses import replace
from typing import Final

from schemas.ids import Ts
from schemas.nodes.changefeed import ChangefeedInfo

STARTS_MAX: Final = 100
"""Of lives that are noted. Who sets the checkpoint more often has each further life told apart by its epoch."""


def in_new_life(info: ChangefeedInfo, start_ts: Ts, epoch: int) -> ChangefeedInfo:
    """Return a changefeed whose checkpoint a user sets under ``epoch``.

    Its start_ts tells the new life from those before, so that versions that know no more name it alike; where one of
    them began there, the epoch does.
    """
    starts = info.former_starts if info.life_epoch else (*info.former_starts, info.start_ts)
    is_told_by_ts = start_ts not in starts and len(starts) < STARTS_MAX
    life_epoch = 0 if is_told_by_ts else max(epoch, info.life_epoch + 1)
    return replace(info, start_ts=start_ts, life_epoch=life_epoch, former_starts=starts)
