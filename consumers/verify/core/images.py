"""Table images that a changefeed still waits for: while one is under way, what its table lacks is no difference."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from consumers.verify.core.outcome import TableOutcome, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagesToCome:
    """What the upstream's owner says of one changefeed."""

    left: int = 0
    """Physical tables whose image is to come or not whole."""
    begun: frozenset[str] = frozenset()
    """``schema.table`` of those that are begun; ids where nobody knows a name."""
    begun_count: int = 0
    """Physical tables among those left that are begun and named."""

    @classmethod
    def read(cls, status: Mapping[str, Any], namespace: str, changefeed_id: str) -> Self:
        """Read the upstream's node; what it does not say there is none of."""
        for shown in status.get("images", ()):
            if (shown.get("namespace"), shown.get("id")) == (namespace, changefeed_id):
                tables = shown.get("tables", ())
                return cls(
                    left=int(shown.get("tables_left", 0)),
                    begun=frozenset(str(table.get("name") or table.get("table_id")) for table in tables),
                    begun_count=len(tables),
                )
        return cls()

    def why(self, table: str) -> str:
        """Return why a table, ``schema.table``, may lawfully differ; '': it may not."""
        if table in self.begun:
            return "its image is under way"
        if self.left > self.begun_count:
            return f"its image may be to come: of {self.left} tables images are not whole"
        return ""


def judged(outcome: TableOutcome, images: ImagesToCome) -> TableOutcome:
    """Return an outcome as it stands while images are under way: what differs then has not been compared."""
    why = images.why(outcome.source) if outcome.verdict is Verdict.DIFFERENT else ""
    if not why:
        return outcome
    reason = f"{why}; until it is whole the destination has a part ({_seen(outcome)})"
    return replace(outcome, verdict=Verdict.NOT_COMPARED, reason=reason)


def _seen(outcome: TableOutcome) -> str:
    if outcome.reason:
        return outcome.reason
    return f"{outcome.source_proof.rows} rows, at the destination {outcome.destination_proof.rows}"
