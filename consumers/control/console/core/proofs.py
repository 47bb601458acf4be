"""What the page of a changefeed shows of its newest proofs: which windows come out even, and which nobody told of."""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from schemas.flow.chain import check_chain
from schemas.flow.flow_sum import NOTHING
from schemas.flow.proof import decode_proof

WINDOWS_SHOWN: Final = 10
FINDINGS_SHOWN: Final = 20
TABLES_SHOWN: Final = 15


def proofs_shown(records: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Return what a changefeed's records, oldest first and as JSON has them, come to.

    A window is ``proven`` if nothing is wrong with its record, else it is ``differing``; ``unproven`` are stretches
    between two records of which none tells.
    """
    contents = [json.dumps(record, sort_keys=True, separators=(",", ":")).encode() for record in records]
    report = check_chain(contents)
    faults: dict[int, list[str]] = {}
    for finding in report.findings:
        faults.setdefault(finding.line, []).append(str(finding.fault))
    untold = report.unproved[-WINDOWS_SHOWN:]
    first = len(contents) - min(WINDOWS_SHOWN, len(contents))
    newest = [_window(content, faults.get(line, [])) for line, content in enumerate(contents[first:], first + 1)]
    return {
        "windows": len(contents),
        "proven": len(contents) - len(faults),
        "differing": len(faults),
        "unproven": len(report.unproved),
        "stretches": [{"after_ts": each.after_ts, "upto_ts": each.upto_ts} for each in untold],
        "findings": [each.said for each in report.findings][-FINDINGS_SHOWN:],
        "newest": [window for window in reversed(newest) if window],
        "busiest": _busiest(contents, [line for line, wrong in faults.items() if "unreadable" in wrong]),
    }


def _busiest(contents: Sequence[bytes], unreadable: Collection[int]) -> list[dict[str, int]]:
    """Return the physical tables of most row changes written in all these windows; each names its largest tables."""
    rows: Counter[int] = Counter()
    for line, content in enumerate(contents, 1):
        if line not in unreadable:
            rows.update({table: each.count for table, each in decode_proof(content).window.tables.items()})
    return [{"table_id": table, "rows": count} for table, count in rows.most_common(TABLES_SHOWN) if count]


def _window(content: bytes, faults: Sequence[str]) -> dict[str, object] | None:
    """Return a row of the table; None: the record does not read, which is said among the findings."""
    if "unreadable" in faults:
        return None
    window = decode_proof(content).window
    return {
        "after_ts": window.after_ts,
        "upto_ts": window.upto_ts,
        "landed": window.landed.count,
        "left_out": sum(window.left_out.values(), NOTHING).count,
        "written": window.written.count,
        "faults": list(faults),
    }
