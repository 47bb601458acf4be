"""Writes BENCH.md and its picture from the figures of the last ``make bench``: what was measured, where, and the aims.

``python -m tests.bench.report`` (``make bench-report``) reads bench-out/ and measures nothing itself. What is said
there of a bench that has no figures in bench-out/ stays as it is.
"""

import json
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.run import BENCHES, MACHINE, OUT, read_figures, read_run

REPORT, PICTURE = Path("BENCH.md"), Path("tests/bench/report.png")
AIMS = {
    "sorter_vs_copy": "`ratio` at least 0.8: a quarter more time than the copy for sorting, mounting and encoding.",
    "spark_source": "`ratio` at least 5.",
    "spark_floor": "one Python task in 60 ms (`p50_ms`) and 30 ms of CPU.",
    "whole_bus": "TiCDC's newest engine on such a machine, rows a CPU second: canal-json 57,000 to 60,000, Avro 44,000"
    " to 49,000, open-protocol 88,000.",
    "backlog": "`rows_per_s` the same within a tenth for the first million rows and for all, and memory the same.",
    "lag": "p50 0.5 s and p99 1 s at 1,000 rows/s at the least; TiCDC's newest engine: 0.27 and 0.47 s at 250 rows/s.",
    "lag_spark": "p50 0.3 s and p99 0.5 s.",
    "lag_cluster": "p50 0.35 s and p99 0.6 s.",
    "lag_high": "p99 0.6 s.",
    "many_feeds": "with 100 changefeeds p99 under 1.5 s at 20,000 messages/s or more, under 3,000 MB, idle under 0.5"
    " core, under 100 requests/s.",
    "second_feed": "`ratio` at most 0.5.",
    "catch_up": "cold at least 30,000 rows a CPU second in 17 s, warm 60,000 in 12 s; half of the rows by Spark.",
    "lag_during_backlog": "`ratio` at most 1.5.",
    "idle_bus": "a capture under 0.05 core, a changefeed under 0.005, a service with a warm JVM under 0.03.",
    "many_tables_batch": "A batch takes no longer for tables without rows; after a DDL only what it changed is sent.",
    "big_transaction_batch": "Memory as in `backlog`, though the whole transaction is one cut.",
}
_HEAD = """# Figures

Made by `make bench` and `make bench-report`; each bench's text (`tests/bench/*/<name>.py`) says what it counts and how.
Wall times depend on what else the machine does, so CPU times stand beside them, and the load before each. Below is the
machine of the last run; the picture shows what was measured there, and each section says when and where it was.

{machine}

![all figures]({picture})
"""


def main() -> int:
    """Write the report; return 1 if there is nothing to report."""
    figures_of = {name: read_figures(name) for name in BENCHES}
    if not any(figures_of.values()) or not MACHINE.exists():
        print(f"no figures in {OUT}/: run make bench first", file=sys.stderr)
        return 1
    shutil.copyfile(OUT / "bench.png", PICTURE)
    kept = _kept_sections()
    parts = [_HEAD.format(machine=_machine(), picture=PICTURE.as_posix())]
    for name, figures in figures_of.items():
        parts.append(_section(name, figures) if figures else kept.get(name, _section(name, ())))
    REPORT.write_text("\n".join(parts))
    return 0


def _machine() -> str:
    facts = json.loads(MACHINE.read_text())
    return "\n".join(f"- {name.replace('_', ' ')}: {value}" for name, value in facts.items())


def _kept_sections() -> dict[str, str]:
    """Return what the report says by now, by bench."""
    text = REPORT.read_text() if REPORT.exists() else ""
    sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)[1:]
    return {section[3:].split("\n", 1)[0]: section.rstrip("\n") + "\n" for section in sections}


def _section(bench: str, figures: Sequence[dict[str, Any]]) -> str:
    lines = [f"## {bench}", "", f"{BENCHES[bench].rsplit(':', 1)[0]}.", ""]
    if bench in AIMS:
        lines += [f"Aim: {AIMS[bench]}", ""]
    if not figures:
        return "\n".join([*lines, "Has not run.", ""])
    if run := read_run(bench):
        took = f" in {run['took_s']} s" if "took_s" in run else ""
        where = json.loads(MACHINE.read_text())["processor"]
        lines += [f"Measured {run['date']} at {run['commit']} on {where}{took}, load before {run['load_before']}.", ""]
    for name in dict.fromkeys(figure["bench"] for figure in figures):
        mine = [
            {key: value for key, value in figure.items() if key != "bench"}
            for figure in figures
            if figure["bench"] == name
        ]
        lines += [*_table(mine), ""]
    return "\n".join(lines)


def _table(figures: Sequence[dict[str, Any]]) -> list[str]:
    """Return a table with a line for each figure; a single one stands upright."""
    columns = list(dict.fromkeys(key for figure in figures for key in figure))
    if len(figures) == 1:
        return ["| | |", "|---|---:|", *(f"| {key} | {_text(figures[0][key])} |" for key in columns)]
    rows = ["| " + " | ".join(_text(figure.get(key, "")) for key in columns) + " |" for figure in figures]
    return ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns), *rows]


def _text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}"


if __name__ == "__main__":
    sys.exit(main())
