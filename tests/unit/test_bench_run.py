"""`make bench` takes every bench that there is, and draws what they print."""

from pathlib import Path

from tests.bench.plot import PANELS, draw
from tests.bench.run import BENCHES

FIGURES = [
    {"bench": "mount_encode", "shape": "s", "protocol": "avro", "rows_per_s": 9, "scalar_rows_per_s": 3},
    {"bench": "sorter_vs_copy", "protocol": "avro", "ratio": 0.7},
    {"bench": "lag", "p50_s": 0.3, "p99_s": 0.6, "max_s": 0.9},
    {"bench": "puller", "to": "nowhere", "rows_per_s": 9, "cpu_rows_per_s": 9},
    {"bench": "big_transaction", "bytes": 1 << 30, "peak_rss_mb": 300, "rows_per_s": 9},
    {"bench": "idle_regions", "regions": 10_000, "tables": 1, "cpu_cores": 0.01},
]


def test_bench_every_module_that_prints_figures_is_run_and_drawn() -> None:
    folder = Path(__file__).parents[1] / "bench"
    modules = {path.stem for path in folder.glob("*.py") if '"bench": "' in path.read_text() and path.stem != "run"}
    assert set(BENCHES) == set(PANELS) == modules


def test_bench_plot_is_drawn_of_all_figures_and_of_none(tmp_path: Path) -> None:
    draw(FIGURES, tmp_path / "all.png")
    draw([], tmp_path / "none.png")
    assert (tmp_path / "all.png").stat().st_size > (tmp_path / "none.png").stat().st_size > 1_000
