"""What each button of a changefeed's page would do, and whether its state allows it: said before it is pressed.

What is allowed follows the state machine (:mod:`consumers.control.core.changefeeds.state`); the API decides once more.
"""

from dataclasses import dataclass
from typing import Final

from consumers.control.changefeeds.verbs import UPDATABLE
from consumers.control.core.changefeeds.state import PAUSABLE, RESUMABLE
from schemas.config.sink.schemes import is_lake_scheme
from schemas.nodes.changefeed import ChangefeedState


@dataclass(frozen=True, slots=True)
class ShownVerb:
    """A button."""

    verb: str
    allowed: bool
    effect: str
    """What happens when it is pressed, or why it cannot be."""


_PAUSE: Final = (
    "Its sorter stops after the batch under way; checkpoint and topics stay, and Resume goes on there. The raw log "
    "loses its oldest records by retention meanwhile: a pause longer than that cannot be resumed without a gap."
)
_RESUME: Final = (
    "It goes on from its checkpoint; nothing is lost, and rows of a batch that was not acknowledged may come again. "
    "With another checkpoint ts it goes on from there: an earlier one repeats rows, a later one leaves rows out."
)
_RESUME_LAKE: Final = (
    "It goes on from its checkpoint; nothing is lost, and nothing is written twice. Leave the checkpoint as it is: "
    "from another one it is a new changefeed to its lake tables, and stops with lake.table_taken."
)
_UPDATE: Final = (
    "Sink URI, file and target ts are checked and replaced; it stays stopped or failed until it is resumed. Rows that "
    "were written stay as they are."
)
_REMOVE: Final = (
    "Checkpoint, settings and state are forgotten, for good: it cannot be resumed. Topics and what stands at the "
    "destination stay as they are."
)
_MOVE: Final = (
    "Its sorter stops after the batch under way and goes on from its checkpoint on the capture that you choose, and "
    "stays there whenever that capture lives. With any capture the owner chooses again."
)


def verbs_of(state: ChangefeedState, sink: str = "") -> tuple[ShownVerb, ...]:
    """Return all verbs in the order of the page's buttons; ``sink`` is the scheme of the changefeed's."""
    resume = _RESUME_LAKE if is_lake_scheme(sink) else _RESUME
    shown = "warning" if state == "pending" else state
    return (
        verb_of("pause", state in PAUSABLE, _PAUSE, f"It is {shown}: nothing runs that could be paused."),
        verb_of("resume", state in RESUMABLE, resume, f"It is {shown}: it runs already."),
        verb_of("update", state in UPDATABLE, _UPDATE, f"It is {shown}: pause it first."),
        verb_of("move", state in PAUSABLE, _MOVE, f"It is {shown}: nobody runs it."),
        verb_of("remove", True, _REMOVE, ""),
    )


def verb_of(verb: str, allowed: bool, effect: str, refusal: str) -> ShownVerb:
    """Return a button with what it does where it is allowed, else with why it is not."""
    return ShownVerb(verb, allowed, effect if allowed else refusal)
