"""Which of TiDB's feature comments (``/*T![feature] … */``) it runs: those whose features it knows, all of them.

To a TiDB that lacks one of the features the text is a comment like any other, and may hold whatever its writer likes.
Which features there are depends on the version, and a job does not say what version ran it. Source: pingcap/tidb
``pkg/parser/tidb/features.go``, ``CanParseFeature``; names count by their case.
"""

import re

KNOWN_FEATURES = frozenset(
    {"auto_rand", "auto_id_cache", "auto_rand_base", "clustered_index", "force_inc", "placement", "ttl"}
)
"""What every TiDB knows that can be pulled from (7.1 and later); ``resource_group`` is a name that none reads."""
_VALUES = r"\(\s*(?:[-+]?[\d.]+|'[\w .:+-]*')(?:\s*,\s*(?:[-+]?[\d.]+|'[\w .:+-]*'))*\s*\)"
_RANGES = rf"(?:BETWEEN\s*{_VALUES}\s*AND\s*{_VALUES}\s*REGIONS\s+\d+|BY\s*{_VALUES}(?:\s*,\s*{_VALUES})*)"
_LATER_FEATURES = {
    "global_index": r"GLOBAL|LOCAL",
    "pre_split": rf"PRE_SPLIT_REGIONS\s*=?\s*(?:\d+|\(\s*(?:\d+|{_RANGES})\s*\))",
    "auto_presplit": r"PRE_SPLIT_REGIONS\s*=?\s*AUTO",
    "affinity": r"AFFINITY\s*=?\s*'\w*'",
    "region_split": rf"SPLIT\s+(?:(?:PRIMARY\s+KEY|INDEX)\s+)?(?:(?:`\w+`|\w+)\s+)?{_RANGES}",
    "softdelete": r"SOFTDELETE\s*=?\s*(?:'\w*'|RETENTION\s*=?\s*\d+\s+\w+)",
    "active_active": r"ACTIVE_ACTIVE\s*=?\s*'\w*'",
}
"""What only some versions know, and the clause that each is for: it names no table, and stays in its comment."""
_LATER = {name: re.compile(rf"\s*(?:{text})?\s*", re.ASCII | re.IGNORECASE) for name, text in _LATER_FEATURES.items()}


def is_run(opening: str, inside: str) -> bool | None:
    """Tell whether TiDB reads a special comment as SQL; None: that depends on its version, and matters.

    Args:
        opening: what it begins with: ``/*!`` and ``/*T!`` are run by every TiDB, ``/*T![feature,…]`` by its features.
        inside: the text up to the first end of a comment.
    """
    features = opening[opening.index("[") + 1 : -1].split(",") if opening.endswith("]") else []
    if not all(name in KNOWN_FEATURES or name in _LATER for name in features):
        return False
    later = [_LATER[name] for name in features if name in _LATER]
    return True if not later or any(clause.fullmatch(inside) for clause in later) else None
