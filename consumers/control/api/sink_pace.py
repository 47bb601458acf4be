"""How long a sink lets rows wait by its own settings: files and lake tables are written at intervals."""

import functools
import json
from typing import Final

from schemas.config.changefeed import load_changefeed
from schemas.config.sink.schemes import is_lake_scheme, sink_scheme
from schemas.config.sink.storage import STORAGE_SCHEMES
from schemas.errors import BusError
from schemas.nodes.changefeed import ChangefeedInfo

_SETTINGS_KEPT: Final = 1024
"""Settings whose interval is known: an overview asks for those of each changefeed every two seconds."""


def pause_s(info: ChangefeedInfo) -> float:
    """Return the seconds between two writes of a changefeed's sink: ``commit-interval`` of lake tables,
    ``flush-interval`` of files; 0 where rows are written as they come, or its settings do not read.
    """
    scheme = sink_scheme(info.sink_uri)
    if not is_lake_scheme(scheme) and scheme not in STORAGE_SCHEMES:
        return 0.0
    return _pause_s(info.sink_uri, json.dumps(info.config.get("sink", {}), sort_keys=True, default=str))


@functools.lru_cache(_SETTINGS_KEPT)
def _pause_s(sink_uri: str, sink_table: str) -> float:
    try:
        sink = load_changefeed(sink_uri, {"sink": json.loads(sink_table)}).sink
    except BusError:
        return 0.0
    if is_lake_scheme(sink_scheme(sink_uri)):
        return float(sink.iceberg.commit_interval_s)
    return float(sink.cloud_storage.flush_interval_s)
