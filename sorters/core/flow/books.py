"""Books of a cut as plain data, as tasks hand them to the driver: sums as text, tables by their id."""

from collections.abc import Mapping
from typing import Any

from schemas.flow.flow_sum import FlowSum, TableSums, parse_sum
from schemas.ids import TableId
from sorters.core.flow.ledger import CutFlow

_BY_TABLE = ("landed", "split", "ordered", "repeats", "written")


def flow_as_plain(flow: CutFlow) -> dict[str, object]:
    """Return the books as what JSON can hold; what is empty is left out."""
    plain: dict[str, object] = {name: _plain(sums) for name in _BY_TABLE if (sums := getattr(flow, name))}
    if flow.left_out:
        plain["left_out"] = {reason: _plain(sums) for reason, sums in flow.left_out.items()}
    if flow.gathered:
        plain["gathered"] = flow.gathered
    return plain


def read_flow(raw: Any) -> CutFlow:
    """Read what :func:`flow_as_plain` returned.

    Raises:
        ValueError, TypeError, AttributeError: it is none.
    """
    return CutFlow(
        gathered=int(raw.get("gathered", 0)),
        left_out={str(reason): _read(sums) for reason, sums in raw.get("left_out", {}).items()},
        **{name: _read(raw.get(name, {})) for name in _BY_TABLE},
    )


def _plain(sums: TableSums) -> dict[str, str]:
    return {str(table): str(each) for table, each in sums.items()}


def _read(raw: Mapping[str, object]) -> dict[TableId, FlowSum]:
    return {TableId(int(table)): parse_sum(each) for table, each in raw.items()}
