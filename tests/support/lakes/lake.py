"""Lake tables read by pyiceberg, which shares no code with what wrote them."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyiceberg.table import StaticTable

from schemas.ids import Ts

Row = dict[str, Any]
_NUMBER = re.compile(r"v(\d+)\.|(\d{5})-")
"""Of a metadata file, as catalogs of files and others name them; one that is not in its place yet has none."""


@dataclass(frozen=True)
class Lake:
    """A warehouse of files."""

    folder: Path

    def metadata(self, schema: str, table: str) -> Path | None:
        """Return the newest metadata file of a table; None: there is no table."""
        folder = self.folder / schema / table / "metadata"
        matched = ((_NUMBER.match(file.name), file) for file in folder.glob("*.metadata.json"))
        numbered = {int(match[1] or match[2]): file for match, file in matched if match is not None}
        return numbered[max(numbered)] if numbered else None

    def table(self, schema: str, table: str) -> StaticTable:
        """Open a table as it is now."""
        metadata = self.metadata(schema, table)
        assert metadata is not None, f"{schema}.{table} is not in the lake"
        return StaticTable.from_metadata(str(metadata))

    def tags(self, schema: str, table: str) -> set[Ts]:
        """Return the watermarks that a table is tagged with."""
        return {Ts(int(name[3:])) for name in self.table(schema, table).refs() if name.startswith("wm_")}

    def rows(self, schema: str, table: str, ts: int | None = None) -> list[Row]:
        """Return the rows at a watermark's tag, or main's, in no particular order."""
        opened = self.table(schema, table)
        snapshot = opened.refs()["main" if ts is None else f"wm_{ts}"].snapshot_id
        rows: list[Row] = opened.scan(snapshot_id=snapshot).to_arrow().to_pylist()
        return rows

    def branches(self, schema: str, table: str) -> set[str]:
        """Return the names of what is no tag of ours."""
        return {name for name in self.table(schema, table).refs() if not name.startswith("wm_")}

    def watermarks(self, schema: str, table: str) -> list[int]:
        """Return what the summaries of main's snapshots say, oldest first."""
        opened = self.table(schema, table)
        snapshots = {snapshot.snapshot_id: snapshot for snapshot in opened.snapshots()}
        said, at = [], opened.refs()["main"].snapshot_id
        while at in snapshots:
            summary = snapshots[at].summary
            value = summary["tidb.committed_resolved_ts"] if summary is not None else None
            if value is not None:
                said.append(int(value))
            at = snapshots[at].parent_snapshot_id or 0
        return said[::-1]

    def turn_back(self, schema: str, table: str) -> None:
        """Let main show the table's first snapshot that is left, as somebody's rollback does; of a catalog of files."""
        file = self.metadata(schema, table)
        assert file is not None
        metadata, number = json.loads(file.read_text()), int(file.name[1:].split(".")[0]) + 1
        first = min(metadata["snapshots"], key=lambda snapshot: int(snapshot["sequence-number"]))["snapshot-id"]
        metadata["current-snapshot-id"] = metadata["refs"]["main"]["snapshot-id"] = first
        (file.parent / f"v{number}.metadata.json").write_text(json.dumps(metadata))
        (file.parent / "version-hint.text").write_text(str(number))

    def data_files(self, schema: str, table: str) -> int:
        """Return how many data files main has."""
        opened = self.table(schema, table)
        return len(list(opened.scan(snapshot_id=opened.refs()["main"].snapshot_id).plan_files()))

    def delete_files(self, schema: str, table: str) -> int:
        """Return how many delete files main has."""
        opened = self.table(schema, table)
        tasks = opened.scan(snapshot_id=opened.refs()["main"].snapshot_id).plan_files()
        return len({file.file_path for task in tasks for file in task.delete_files})

    def operations(self, schema: str, table: str) -> set[str]:
        """Return what the snapshots that are there were written by: append, overwrite, delete, replace."""
        summaries = (snapshot.summary for snapshot in self.table(schema, table).snapshots())
        return {summary.operation.value for summary in summaries if summary is not None}

    def partition_fields(self, schema: str, table: str) -> list[str]:
        """Return the transforms by which it is partitioned."""
        return [str(field.transform) for field in self.table(schema, table).spec().fields]
