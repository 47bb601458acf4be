"""Of a changefeed whose settings are not allowed any more: those that say which tables it has and what it began with.

A newer version may refuse what an older one took. An update then replaces what is not allowed, and is held against the
settings that are.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from schemas.config.changefeed import load_changefeed
from schemas.config.settings import ChangefeedConfig
from schemas.errors import ConfigError
from schemas.nodes.changefeed import ChangefeedInfo

_ANY_SINK: Final = "blackhole://"
_KEPT: Final = ("case-sensitive", "force-replicate", "initial", "initial-rules", "state-proofs")


def readable_part(info: ChangefeedInfo) -> tuple[ChangefeedInfo, ChangefeedConfig] | None:
    """Return a changefeed whose settings are allowed, with these: itself; or with a sink that takes anything and as
    much of its settings as concerns its tables; None: nor are these allowed.
    """
    if (config := _loaded(info)) is not None:
        return info, config
    part = replace(info, sink_uri=_ANY_SINK, config=_of_tables(info.config))
    return None if (config := _loaded(part)) is None else (part, config)


def _loaded(info: ChangefeedInfo) -> ChangefeedConfig | None:
    try:
        return load_changefeed(info.sink_uri, info.config)
    except ConfigError:
        return None


def _of_tables(config: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: config[key] for key in _KEPT if key in config}
    rules = kept.get("initial-rules")
    if isinstance(rules, list):  # one that matches nothing, which former versions took, says nothing
        kept["initial-rules"] = [rule for rule in rules if not isinstance(rule, dict) or rule.get("matcher") != []]
    filters = config.get("filter")
    if isinstance(filters, dict) and "rules" in filters:
        kept["filter"] = {"rules": filters["rules"]}
    return kept
