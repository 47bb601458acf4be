"""Rows of the server: keys of TiCDC's server file, and what a server does beside."""

import tempfile
from pathlib import Path

from compose.cli.options.server_file import read_server_file
from schemas.errors import BusError
from tests.parity.evidence import names_it, shown
from tests.parity.rows import Mark, Row, Verdict


def judge_server_key(row: Row) -> Verdict:
    """Return what becomes of a key of the server file. The probe: TOML that sets it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "server.toml"
        file.write_text(row.probe)
        try:
            values, notes = read_server_file(file)
        except BusError as error:
            unknown = "unknown key" in str(error)
            text = str(error).partition("] ")[2].partition(" (")[0]
            return Verdict(Mark.UNKNOWN if unknown else Mark.REFUSED, f"`{error.code}`: {text}")
    key = row.item.removeprefix("server file: ")
    if notes:
        return Verdict(Mark.NO_EFFECT, f"note: {notes[0]}")
    if not values:
        return Verdict(Mark.SILENT, "it gives a capture nothing")
    return shown(row, key, key.rpartition(".")[2])


def judge_feature(row: Row) -> Verdict:
    """Return what becomes of a feature. The probe: a word of its test; '': it is not here, or refused by a code."""
    if row.probe:
        return shown(row, row.probe)
    if row.how.startswith("`") and names_it(row.test, row.how.split("`")[1]):
        return Verdict(Mark.REFUSED, f"{row.how} (`{row.test}`)")
    return Verdict(Mark.NOT_HERE, row.how) if row.how else Verdict(Mark.SILENT, "there is nothing, and no reason")
