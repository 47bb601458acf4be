"""When a changefeed's next record of proofs is due."""

from typing import Final

from schemas.flow.proof import ProofWindow

BUSY_S: Final = 1.0
IDLE_S: Final = 60.0
"""Where no row came, which is a thing to tell, too."""


def takes(window: ProofWindow, since_s: float) -> bool:
    """Tell whether what has come to pass is to be told, so long after the last record."""
    is_busy = bool(window.landed or window.written or window.left_out or window.states)
    return since_s >= (BUSY_S if is_busy else IDLE_S)
