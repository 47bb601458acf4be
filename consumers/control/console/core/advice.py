"""What to do about an error, by its code: the catalogue's explanation, steps, and the verbs that carry them out."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from consumers.control.console.core.lake_advice import LAKE_HISTORY_LOST, LAKE_STEPS
from schemas.config.sink.schemes import is_lake_scheme

Verb = str
"""A button of the changefeed's page: ``update``, ``resume``, ``remove`` or ``move``."""


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """One line of docs/error-codes.md."""

    code: str
    follows: str
    """``retried``, ``needs you`` or ``a bug``."""
    meaning: str


@dataclass(frozen=True, slots=True)
class Advice:
    """What the page says beside an error."""

    code: str
    follows: str
    meaning: str
    steps: tuple[str, ...]
    verbs: tuple[Verb, ...]
    """In the order in which to press them."""


_ANEW: Final = (
    "What the changefeed needs is no longer held, so it cannot go on without a gap.",
    "Bring the destination to a known ts by a copy.",
    "Then resume from another checkpoint, at or above the oldest ts of the raw log, or remove it and create it anew.",
)
_SETTINGS: Final = ("Change the setting that the error names: Update shows the file and the sink URI.", "Then resume.")
_DESTINATION: Final = (
    "Mend the destination: the error names what it refuses, and why.",
    "If it is to go elsewhere, or with other settings, update the changefeed.",
    "Then resume; it goes on from its checkpoint, and nothing is lost.",
)
_PROVE_AGAIN: Final = (
    "Rows at the destination may be wrong: the error names the window of commit_ts, from after_ts to upto_ts.",
    "Resume from another checkpoint, at or below after_ts and its own: all is written and proven anew from there on.",
    "Compare the table afterwards (tidebus verify).",
)
_STEPS: Final[Mapping[str, tuple[tuple[str, ...], tuple[Verb, ...]]]] = {
    "sorter.topic_missing": (
        (
            "Create the topic that the error names, with the partitions you want;",
            "or let TideBus create it: update the sink URI so that it says auto-create-topic=true, or names another.",
            "Then resume.",
        ),
        ("update", "resume"),
    ),
    "sorter.topic_partitions": (
        ("Lower partition-num to what the topic has, or give the topic more partitions in Kafka.", "Then resume."),
        ("update", "resume"),
    ),
    "sink.message_too_large": (
        (
            "Raise max-message-bytes in the sink URI, and max.message.bytes of the topic;",
            "or let large rows be sent another way, by large-message-handle-option in the file.",
            "Then resume.",
        ),
        ("update", "resume"),
    ),
    "sink.ddl_unsafe": (
        (
            "Run the DDL at the destination by hand, or pass it by as the error says (ignore-txn-start-ts).",
            "Then resume.",
        ),
        ("update", "resume"),
    ),
    "apply.ddl_refused": (
        (
            "Make the DDL fit at the destination, or pass it by as the error says (ignore-txn-start-ts).",
            "If it was called off there while it ran, set read-timeout as the error says.",
            "Then resume.",
        ),
        ("update", "resume"),
    ),
    "apply.recover_refused": (
        (
            "Create the table at the destination, empty, with upstream's columns and keys; of a database all of them.",
            "Then resume: that is noticed.",
            "Backfill the table (on its page), which brings its rows; with initial they come by themselves.",
        ),
        ("resume",),
    ),
    "apply.flow_broken": (_PROVE_AGAIN, ("update", "resume")),
    "apply.fence_went_back": (
        (
            "ZooKeeper's numbers went back, as when its data were restored: what sorters write now is passed over.",
            "Resume from another checkpoint, at or below its own: that gives it a new topic.",
        ),
        ("update", "resume"),
    ),
    "schema.flashback_cluster": (
        (
            "FLASHBACK CLUSTER took DDL back: what is known of the tables is wrong from there on.",
            "Begin a raw log of a new --upstream name, and make the destination's tables as they stand upstream.",
            "Create the changefeed anew on it.",
            "If that DDL was of no table of this one: pass it by (ignore-txn-start-ts) and resume.",
        ),
        ("update", "resume"),
    ),
    "rawlog.record_damaged": (
        (
            'No resume passes it. Add "PARTITION:OFFSET" of the error to skip-damaged-records under [filter].',
            'Then resume; if another record is damaged, the next error names it: add it, or "PARTITION:FIRST-LAST".',
            "Resync the table that the error names (on its page): until then it lacks the rows of the record.",
            "Where no table is named, copy the tables anew and resume from the copy's ts.",
        ),
        ("update", "resume"),
    ),
    "rawlog.image_chunk_broken": (
        (
            "No resume passes it: what was scanned of the table is not what stands in the images topic now.",
            "Remove the changefeed, and create it anew with the same file.",
            "If it had its first images already: from its checkpoint, without initial; then ask for the image again.",
        ),
        ("remove",),
    ),
    **LAKE_STEPS,
    "sorter.history_lost": (_ANEW, ("resume", "remove")),
    "sorter.interval_gone": (_ANEW, ("resume", "remove")),
    "schema.history_gone": (_ANEW, ("resume", "remove")),
    "apply.history_lost": (_ANEW, ("resume", "remove")),
    "frontier.lost": (_ANEW, ("resume", "remove")),
    "changefeed.table_held": (
        ("Nothing is wrong with the changefeed: the upstream page says which table is behind, and why.",),
        (),
    ),
    "changefeed.upstream_stands": (
        ("Nothing is wrong with the changefeed: the upstream page says what stands still, and why.",),
        (),
    ),
}
_FAMILIES: Final[tuple[tuple[str, tuple[str, ...], tuple[Verb, ...]], ...]] = (
    ("apply.", _DESTINATION, ("update", "resume")),
    ("storage.", _DESTINATION, ("update", "resume")),
    ("config.", _SETTINGS, ("update", "resume")),
    ("bus.config", _SETTINGS, ("update", "resume")),
    ("changefeed.", _SETTINGS, ("update", "resume")),
    ("sorter.", _SETTINGS, ("update", "resume")),
    ("sink.", _SETTINGS, ("update", "resume")),
    ("mount.", _SETTINGS, ("update", "resume")),
)
_BUG: Final = (
    "This is a bug of TideBus; it has stopped before wrong data left it.",
    "Please report it with the log around it. Resume tries the same again.",
)
_NEEDS_YOU: Final = ("The same attempt would fail again: mend the cause that the error names.", "Then resume.")
_RETRIED: Final = (
    "TideBus tries again by itself, after growing pauses; look at what the error names if it goes on.",
    "If it has failed for good in the meantime, resume once the cause is mended.",
)


def read_codes(text: str) -> Mapping[str, ErrorCode]:
    """Return the catalogue of a JSON array of ``[code, follows, meaning]``, as this package ships it."""
    return {code: ErrorCode(code, follows, meaning) for code, follows, meaning in json.loads(text)}


def advice_for(code: str, codes: Mapping[str, ErrorCode], sink: str = "") -> Advice:
    """Return what to say of an error; of a code that nobody knows too, such as TiCDC's own. ``sink`` is the scheme of
    the changefeed's.
    """
    known = codes.get(code, ErrorCode(code, "needs you", ""))
    steps, verbs = _steps_for(known)
    if steps is _ANEW and is_lake_scheme(sink):
        steps, verbs = LAKE_HISTORY_LOST, ("remove",)
    return Advice(code, known.follows, known.meaning, steps, verbs)


def _steps_for(known: ErrorCode) -> tuple[tuple[str, ...], tuple[Verb, ...]]:
    if known.code in _STEPS:
        return _STEPS[known.code]
    if known.follows == "a bug":
        return _BUG, ("resume",)
    if known.follows == "retried":
        return _RETRIED, ("resume",)
    for prefix, steps, verbs in _FAMILIES:
        if known.code.startswith(prefix):
            return steps, verbs
    return _NEEDS_YOU, ("update", "resume")
