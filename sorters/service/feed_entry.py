"""How far a hosted changefeed is, as its entry says it."""

from dataclasses import replace

from schemas.nodes.feed_figures import FeedFigures
from schemas.nodes.sorter_service import FeedEntry
from sorters.run.epochs import CutProgress


def entry_after(entry: FeedEntry, progress: CutProgress, cpu_s: float) -> FeedEntry:
    """Return the entry once a cut is written; ``cpu_s`` is what the changefeed has taken since it began to run here."""
    counted, rows = entry.figures, progress.rows
    return replace(
        entry,
        checkpoint_ts=max(entry.checkpoint_ts, progress.checkpoint_ts),
        resolved_ts=max(entry.resolved_ts, progress.resolved_ts),
        rows_total=entry.rows_total + rows,
        spark_rows_total=entry.spark_rows_total + (rows if progress.by_spark else 0),
        corrupt_rows_total=entry.corrupt_rows_total + progress.corrupt_rows,
        batch_rows=rows,
        batch_s=round(progress.cut_s, 4),
        last_synced_ts=progress.checkpoint_ts if rows else entry.last_synced_ts,
        cpu_s=round(cpu_s, 3),
        figures=FeedFigures(
            reason=progress.reason,
            damaged_records_total=counted.damaged_records_total + progress.damaged_records,
            states_proven=progress.states_proven,
            states_unproven=progress.states_unproven,
            windows_proven=counted.windows_proven + (progress.window is not None),
            sent=counted.sent.then(progress.sent),
        ),
    )
