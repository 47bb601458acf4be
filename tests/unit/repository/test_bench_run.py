"""`make bench` takes every bench that there is, and draws what they print."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench import report, run
from tests.bench.plot import PANELS, draw
from tests.bench.run import BENCHES

FIGURES: list[dict[str, Any]] = [
    {"bench": "mount_encode", "shape": "s", "protocol": "avro", "rows_per_s": 9, "scalar_rows_per_s": 3},
    {"bench": "sorter_vs_copy", "protocol": "avro", "ratio": 0.7},
    {"bench": "lag", "rows_per_s": 1_000, "p50_s": 0.3, "p99_s": 0.6, "max_s": 0.9},
    {"bench": "lag_spark", "rows_per_s": 1_000, "p50_s": 0.3, "p99_s": 0.6, "max_s": 0.9},
    {"bench": "lag_cluster", "rows_per_s": 1_000, "p50_s": 0.4, "p99_s": 0.7, "max_s": 0.9},
    {"bench": "lag_high", "rows_per_s": 5_000, "p50_s": 0.3, "p99_s": 0.6, "max_s": 0.9},
    {"bench": "spark_floor", "p50_ms": 60.0, "cpu_ms": 20.0, "plain_p50_ms": 130.0, "plain_cpu_ms": 150.0},
    {"bench": "spark_source", "way": "read", "changes_per_cpu_s": 9, "canal_changes_per_cpu_s": 3},
    {"bench": "puller", "to": "nowhere", "rows_per_s": 9, "cpu_rows_per_s": 9},
    {"bench": "big_transaction", "bytes": 1 << 30, "peak_rss_mb": 300, "rows_per_s": 9},
    {"bench": "idle_regions", "regions": 10_000, "tables": 1, "cpu_cores": 0.01},
    {"bench": "whole_bus", "protocol": "avro", "rows_per_cpu_s": 9},
    {"bench": "backlog", "rows": 1_000_000, "rows_per_s": 9, "peak_rss_mb": 9},
    {
        "bench": "many_tables_batch",
        "tables": 9,
        "busy_tables": 3,
        "few_tables_batch_s": 1,
        "batch_s": 2,
        "ddl_batch_s": 3,
    },
    {"bench": "big_transaction_batch", "rows": 9, "seconds": 1.0, "peak_rss_mb": 9},
    {"bench": "image_scan", "to": "kafka", "rows_per_cpu_s": 500_000},
    {"bench": "snapshot", "rows": 300_000, "rows_per_cpu_s": 100_000},
    {"bench": "failover", "session_timeout_s": 6.0, "beyond_session_s": 2.0, "resign_s": 1.0},
    {"bench": "move_pause", "seconds": 0.3, "worst_s": 0.5, "usual_s": 0.3},
    {"bench": "many_tables", "tables": 100, "assign_s": 9.0, "idle_cores": 0.1},
    {"bench": "mysql_apply", "ratio": 0.5},
    {"bench": "storage_write", "ratio": 0.9},
    {"bench": "verify", "rows_per_cpu_s": 100_000, "python_rows_per_s": 120_000},
    {"bench": "lake", "ratio": 0.8},
    {"bench": "lake_tables", "tables": 100, "commit_cpu_s": 2.0},
    {
        "bench": "many_feeds",
        "feeds": 100,
        "p99_s": 1.4,
        "cores": 1.0,
        "idle_cores": 0.1,
        "memory_mb": 2_000,
        "messages_per_s": 28_000,
    },
    {"bench": "proofs", "shape": "sbtest1", "cut_rows": 100, "sent_ratio": 0.02},
    {"bench": "second_feed", "ratio": 0.3},
    {"bench": "catch_up", "how": "warm", "rows_per_cpu_s": 60_000, "seconds": 9.0},
    {"bench": "lag_during_backlog", "ratio": 1.4},
    {"bench": "idle_bus", "capture_cores": 0.05, "service_cores": 0.03, "feed_cores": 0.005},
    {"bench": "zookeeper_requests", "feeds": 100, "moving": True, "requests_per_s": 9.0},
]


def test_bench_every_module_that_prints_figures_is_run_and_drawn() -> None:
    folder = Path(__file__).parents[2] / "bench"
    modules = {
        f"tests.bench.{path.parent.name}.{path.stem}"
        for path in folder.glob("*/*.py")
        if '"bench": "' in path.read_text()
    }
    assert set(BENCHES) == set(PANELS)
    assert sorted(run.module_of(name) for name in BENCHES) == sorted(modules)


def test_bench_plot_is_drawn_of_all_figures_and_of_none(tmp_path: Path) -> None:
    assert {figure["bench"] for figure in FIGURES} == set(PANELS)
    draw(FIGURES, tmp_path / "all.png")
    draw([], tmp_path / "none.png")
    assert (tmp_path / "all.png").stat().st_size > (tmp_path / "none.png").stat().st_size > 1_000


def test_bench_report_tells_when_of_what_and_at_which_load_each_figure_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests/bench").mkdir(parents=True)
    run.OUT.mkdir()
    run.MACHINE.write_text(json.dumps({"processor": "some, 2 cores"}))
    (run.OUT / "bench.png").write_bytes(b"picture")
    (run.OUT / "lag.jsonl").write_text(json.dumps(FIGURES[2]) + "\n")
    facts = {"date": "2026-11-24", "commit": "abc1234", "load_before": 0.4, "took_s": 90}
    (run.OUT / "lag.run.json").write_text(json.dumps(facts))
    assert report.main() == 0
    assert report.PICTURE.read_bytes() == b"picture"
    written = report.REPORT.read_text()
    assert "Measured 2026-11-24 at abc1234 on some, 2 cores in 90 s, load before 0.4." in written
    assert written.count("Measured ") == 1 and written.count("Has not run.") == len(BENCHES) - 1
    # Another machine, another bench: what was said of the first one stays.
    (run.OUT / "lag.jsonl").unlink()
    (run.OUT / "puller.jsonl").write_text(json.dumps(FIGURES[8]) + "\n")
    (run.OUT / "puller.run.json").write_text(json.dumps({**facts, "date": "2026-11-25"}))
    run.MACHINE.write_text(json.dumps({"processor": "other, 4 cores"}))
    assert report.main() == 0
    later = report.REPORT.read_text()
    assert section(later, "lag") == section(written, "lag") and "on some, 2 cores" in section(later, "lag")
    assert "Measured 2026-11-25 at abc1234 on other, 4 cores" in section(later, "puller")
    assert later.count("Measured ") == 2 and later.count("Has not run.") == len(BENCHES) - 2


def section(text: str, bench: str) -> str:
    """Return what a report says of a bench."""
    return text.split(f"## {bench}\n")[1].split("\n## ")[0].rstrip()
