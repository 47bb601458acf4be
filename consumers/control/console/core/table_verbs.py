"""What each button of table images would do, and whether state and sink allow it: said before it is pressed.

What is refused of single tables (one without a key, say) the API says.
"""

from typing import Final

from consumers.control.console.core.verbs import ShownVerb, verb_of
from consumers.control.core.changefeeds.state import PAUSABLE
from schemas.config.sink.schemes import is_lake_scheme
from schemas.config.sink.sink_uri import DATABASE_SCHEMES
from schemas.config.sink.storage import STORAGE_SCHEMES
from schemas.nodes.changefeed import ChangefeedState

_SCANS: Final = (
    "TiKV is scanned for the rows that the tables have, chunk by chunk, at some price to it; changes go out as ever "
    "meanwhile, and no row goes back behind a newer change."
)
_BACKFILL: Final = f"Each row that the tables have is written once more; nothing is deleted. {_SCANS}"
_RESYNC: Final = "Each row that the tables have is written once more, and rows that they have not are taken away"
_RESYNC_TOPIC: Final = (
    f"{_RESYNC}: a TRUNCATE TABLE stands before them in the topic, so that whoever reads it empties the table first, "
    f"and has it in part until all have come. {_SCANS}"
)
_RESYNC_DATABASE: Final = (
    f"{_RESYNC}: where the key is of whole numbers, what the destination has between the rows of a chunk goes with the "
    "chunk; else the keys that it has are noted first, in the schema `tidebus`, and what is left of them goes when the "
    f"image is whole. {_SCANS}"
)
_RESYNC_LAKE: Final = (
    f"{_RESYNC}, once the image is whole; in mode upsert alone, for append holds each change. {_SCANS}"
)
_NO_RESYNC: Final = "Files have no place for rows that are there no more; Backfill writes the rows that there are."
_PAUSE: Final = (
    "No further chunk of these tables is begun. Changes, and chunks that have landed, go out; other changefeeds go on."
)
_RESUME: Final = "Images of these tables go on where they were."


def table_verbs_of(state: ChangefeedState, sink: str) -> tuple[ShownVerb, ...]:
    """Return the verbs in the order of the buttons; ``sink`` is the scheme of the changefeed's."""
    runs = state in PAUSABLE
    shown = f"It is {state}: resume it first."
    return (
        verb_of("backfill", runs, _BACKFILL, shown),
        verb_of("resync", runs and sink not in STORAGE_SCHEMES, _resync(sink), shown if not runs else _NO_RESYNC),
        verb_of("pause", runs, _PAUSE, shown),
        verb_of("resume", runs, _RESUME, shown),
    )


def _resync(sink: str) -> str:
    if is_lake_scheme(sink):
        return _RESYNC_LAKE
    return _RESYNC_DATABASE if sink in DATABASE_SCHEMES else _RESYNC_TOPIC
