"""The page docs/parity.md, from the rows and what our code makes of them: ``python -m tests.parity.page`` writes it.

A mark is computed: the setting is loaded, the path asked for, the command looked up, the metric looked for on a page of
metrics. Reasons and differences stand in the rows by hand.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tests.parity.api import judge_path
from tests.parity.commands import judge_command
from tests.parity.dashboards import read_panels
from tests.parity.events import judge_content, labels_of
from tests.parity.rows import Mark, Row, Verdict, read_rows
from tests.parity.server import judge_feature, judge_server_key
from tests.parity.settings import judge_key, judge_parameter

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "parity.md"
COMMITS: Final = "tiflow c7b2588ef6 of 2026-08-20 and ticdc b813e76f9d of 2026-08-18"


@dataclass(frozen=True, slots=True)
class Section:
    """A table of the page, and who judges its rows."""

    title: str
    file: str
    judge: Callable[[Row], Verdict]


SECTIONS: Final = (
    Section("Keys of the changefeed file", "config", judge_key),
    Section("Sink URIs", "uri", judge_parameter),
    Section("Verbs and flags", "cli", judge_command),
    Section("HTTP API", "api", judge_path),
    Section("Protocols, DDL, events", "content", judge_content),
    Section("Metrics", "metrics", judge_content),
    Section("Server file", "server", judge_server_key),
    Section("Features", "features", judge_feature),
)
DASHBOARDS: Final = {
    "classic": "TiCDC, classic",
    "summary": "TiCDC summary, classic",
    "new": "TiCDC, new architecture",
}
HEAD: Final = f"""# TiCDC's things, and what becomes of each

Every key, parameter, verb, flag, endpoint and metric of TiCDC ({COMMITS}; both
architectures). `python -m tests.parity.page` writes this page: each mark is what our own code answered.

| mark | means |
|---|---|
| same | works as in TiCDC; the test shows it |
| differs | works, but for what is said |
| no effect | taken; the note is printed when the changefeed is created, or the capture starts |
| refused | by the code, with the text |
| not here | nothing of TideBus's has this name; the reason |
"""


@cache
def judged() -> tuple[tuple[Section, tuple[tuple[Row, Verdict], ...]], ...]:
    """Return all sections with what each row came to."""
    return tuple((part, tuple((row, part.judge(row)) for row in read_rows(part.file))) for part in SECTIONS)


def page_text() -> str:
    """Return the page."""
    parts = [HEAD]
    for section, rows in judged():
        counts = Counter(verdict.mark for _, verdict in rows)
        said = ", ".join(f"{counts[mark]} {mark}" for mark in Mark if counts[mark])
        lines = [f"{len(rows)} rows: {said}.", "", "| item | since | mark | how |", "|---|---|---|---|"]
        lines += [f"| `{row.item}` | {row.since} | {verdict.mark} | {_cell(verdict.how)} |" for row, verdict in rows]
        parts.append(f"## {section.title}\n\n" + "\n".join(lines) + "\n")
    return "\n".join([*parts, _dashboards()])


def _dashboards() -> str:
    """Return how many panels of TiCDC's dashboards show something here."""
    asked = read_panels()
    lines = ["| dashboard | panels | with a metric that is here |", "|---|---|---|"]
    for name, title in DASHBOARDS.items():
        panels = {item.panel for item in asked if item.dashboard == name}
        with_metric = {item.panel for item in asked if item.dashboard == name and labels_of(item.metric) is not None}
        lines.append(f"| {title} | {len(panels)} | {len(with_metric)}: {', '.join(sorted(with_metric))} |")
    said = "What the others ask for has its reason among the metrics, or is TiKV's, TiDB's, PD's or Go's."
    return "## Dashboards\n\n" + "\n".join(lines) + f"\n\n{said}\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


if __name__ == "__main__":
    PAGE.write_text(page_text(), encoding="utf-8")
