"""Rows of the comparison with TiCDC, as data in ``tests/parity/rows``, and what a probe makes of one."""

import csv
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "rows"


class Mark(StrEnum):
    """What becomes of a thing of TiCDC's here."""

    SAME = "same"
    DIFFERS = "differs"
    NO_EFFECT = "no effect"
    """Taken, changes nothing, and the user is shown why."""
    REFUSED = "refused"
    """By a code and a text that names it."""
    NOT_HERE = "not here"
    """Nothing of TideBus's has this name; the row says why."""
    SILENT = "silent"
    """A fault: taken, and neither works nor is named."""
    UNKNOWN = "unknown key"
    """A fault: refused as if TiCDC did not have it either, or passed over as a parameter that nobody reads."""


FAULTS: Final = frozenset({Mark.SILENT, Mark.UNKNOWN})


@dataclass(frozen=True, slots=True)
class Row:
    """A thing of TiCDC's."""

    item: str
    since: str
    """Which of TiCDC's versions or architectures has it; '' for all."""
    probe: str
    """What our code is driven with; what it means depends on the section."""
    test: str
    """The test of its effect, where it has one here: ``path::function``, with ``:word`` where that names it."""
    how: str
    """What differs or why it is not here, by hand."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a probe has shown of a row."""

    mark: Mark
    how: str
    """The note, the code, the test or the reason."""


def read_rows(name: str) -> list[Row]:
    """Return the rows of a file, in its order."""
    with (FOLDER / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return [Row(**line) for line in csv.DictReader(file)]
