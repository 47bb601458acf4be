"""Rows of changefeed files and sink URIs: each is read by :func:`schemas.config.changefeed.load_changefeed`."""

import re
from typing import Final

from schemas.config.changefeed import load_changefeed
from schemas.config.parse.origin import dotted
from schemas.config.settings import ChangefeedConfig
from schemas.config.sink.sink_uri import parse_sink_uri
from schemas.errors import BusError
from tests.parity.evidence import field_of, is_read, shown
from tests.parity.rows import Mark, Row, Verdict

_AVRO: Final = "avro&schema-registry=http://r&enable-tidb-extension=true"
SINKS: Final = {
    "avro": f"kafka://h/t?protocol={_AVRO}",
    "canal-json": "kafka://h/t?protocol=canal-json&enable-tidb-extension=true",
    "csv": "file:///data?protocol=csv",
    "debezium": "kafka://h/t?protocol=debezium",
    "mysql": "mysql://root@h/",
    "open": "kafka://h/t?protocol=open-protocol",
    "simple": "kafka://h/t?protocol=simple",
}
"""Sink URIs by the words that rows have for them."""
_CODE: Final = re.compile(r"\[[\w.]+\] (.*?)(?: \([\w]+=.*\))?", re.DOTALL)


def judge_key(row: Row) -> Verdict:
    """Return what becomes of a key of the changefeed file. The probe: a sink, `` | ``, TOML that sets the key."""
    sink, _, text = row.probe.partition(" | ")
    return _judge(row, SINKS.get(sink, sink), text, row.item)


def judge_parameter(row: Row) -> Verdict:
    """Return what becomes of a parameter of the sink URI. The probe: a URI, `` | ``, the parameter, `` | ``, a file."""
    if not row.probe:
        return Verdict(Mark.NOT_HERE, row.how) if row.how else Verdict(Mark.SILENT, "there is nothing, and no reason")
    uri, _, rest = row.probe.partition(" | ")
    name, _, text = rest.partition(" | ")
    if not name:
        return _judge(row, uri, text, "")
    try:
        parsed, _, names = parse_sink_uri(uri)
    except BusError as error:
        return _refused(error)
    if f"`{name}`" in ", ".join(parsed.unread):
        return Verdict(Mark.UNKNOWN, f"`{name}` is passed over as if nobody read it")
    key = next((dotted(path) for path, given in names.items() if given == name), "")
    return _judge(row, uri, text, key, name)


def _judge(row: Row, uri: str, text: str, key: str, name: str = "") -> Verdict:
    """Load a changefeed and look at what is said of a key (in full, ``[]`` for items of lists) or a parameter."""
    try:
        config = load_changefeed(uri, text)
    except BusError as error:
        return _refused(error)
    notes = [note for note in config.notes if _is_about(note, key, name)]
    idle = [note for note in notes if "no effect" in note or "nothing is written" in note or note.startswith("TiCDC's")]
    if idle:
        return Verdict(Mark.NO_EFFECT, f"note: {idle[0]}")
    words = [word for word in (key.rpartition(".")[2], name) if word]
    field = field_of(key) if key else None
    if key and not is_read(key) and not row.how.startswith("always"):
        return Verdict(Mark.SILENT, "nothing of the product reads it")
    if not key and name and not _changes(uri, name, config):
        return Verdict(Mark.SILENT, "the storage is opened with the same options without it")
    verdict = shown(row, *words, *([field] if field else []), *([] if words else [uri.partition("://")[0]]))
    return Verdict(verdict.mark, f"{verdict.how}; note: {notes[0]}") if notes else verdict


def _is_about(note: str, key: str, name: str) -> bool:
    """Tell whether a note begins with a key, or with a table that the key is in, or names a parameter."""
    begin = re.sub(r"\[\d+\]", "[]", note)
    if name and re.match(rf"(?:TiCDC's )?sink URI: .*`{re.escape(name)}`", note):
        return True
    parts = key.split(".") if key else []
    above = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
    return any(re.match(rf"{re.escape(prefix)}(?: |:)", begin) for prefix in above)


def _changes(uri: str, name: str, config: ChangefeedConfig) -> bool:
    """Tell whether a storage's parameter changes how the storage is opened, or may be left to its client."""
    head, _, query = uri.partition("?")
    kept = "&".join(item for item in query.split("&") if item.partition("=")[0] != name)
    storage, without = config.uri.storage, load_changefeed(f"{head}?{kept}").uri.storage
    assert storage is not None and without is not None
    return storage.options != without.options


def _refused(error: BusError) -> Verdict:
    message = str(error)
    if "unknown key" in message:
        return Verdict(Mark.UNKNOWN, message)
    match = _CODE.fullmatch(message)
    return Verdict(Mark.REFUSED, f"`{error.code}`: {match[1] if match else message}")
