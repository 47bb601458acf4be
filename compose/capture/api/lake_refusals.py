"""Which tables lakes refuse, for answers of the API: kept by changefeed, as a console asks again and again."""

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from compose.foresight.destinations import LakeRefusals, RefusedTable
from schemas.config.changefeed import load_changefeed
from schemas.ddl.schema_change import StoredTable
from schemas.nodes.changefeed import ChangefeedInfo

FEEDS_KEPT: Final = 8
"""Some MB each, where there are 10,000 tables."""


class KnownRefusals:
    """Of the changefeeds that were asked for last. Safe from several threads; who asks while another does waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str, str], LakeRefusals] = OrderedDict()
        """By upstream and settings."""

    def among(self, info: ChangefeedInfo, tables: Iterable[StoredTable]) -> list[RefusedTable]:
        """Return which of an upstream's tables a changefeed's sink, a lake, refuses, in their order.

        Raises:
            BusError: the settings are not allowed any more, or a TableInfo that is decoded does not decode.
        """
        settings = (info.upstream, info.sink_uri, json.dumps(info.config, sort_keys=True, default=str))
        with self._lock:
            refusals = self._kept.pop(settings, None)
            if refusals is None:
                refusals = LakeRefusals(load_changefeed(info.sink_uri, info.config))
            self._kept[settings] = refusals
            while len(self._kept) > FEEDS_KEPT:
                self._kept.popitem(last=False)
            return refusals.among(tables)
