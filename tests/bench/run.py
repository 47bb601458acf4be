"""`make bench`: runs the benches one after the other, keeps their figures in bench-out/ and draws them.

Each bench is a module here that prints JSON lines on standard output, ``{"bench": name, …}``; what else it has to say
goes to standard error. They run as processes of their own, so that one's memory and JVM are not another's.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCHES = ("mount_encode", "sorter_vs_copy", "lag")
OUT = Path("bench-out")


def main() -> int:
    """Run all benches, or one; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=BENCHES)
    chosen = parser.parse_args().only
    OUT.mkdir(exist_ok=True)
    failed = [name for name in BENCHES if chosen in (None, name) and not run_bench(name)]
    figures = [figure for name in BENCHES for figure in _read(OUT / f"{name}.jsonl")]
    plot = OUT / "bench.png"
    draw(figures, plot)
    print(f"figures and plot are in {OUT}/", file=sys.stderr)
    for name in failed:
        print(f"bench {name} failed", file=sys.stderr)
    return 1 if failed else 0


def run_bench(name: str) -> bool:
    """Run one bench, showing and keeping its figures; tell whether it ended well."""
    process = subprocess.Popen([sys.executable, "-m", f"tests.bench.{name}"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        if line.startswith("{"):
            print(line, end="", flush=True)
            lines.append(line)
    if process.wait() != 0 or not lines:
        return False
    (OUT / f"{name}.jsonl").write_text("".join(lines))
    return True


def draw(figures: list[dict[str, Any]], path: Path) -> None:
    """Draw what there is: rows a second by shape and protocol beside the scalar loop, sorter against copy, and lag."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    picture, (mount, sorter, lag) = pyplot.subplots(1, 3, figsize=(16, 5), width_ratios=(3, 1, 1))
    encode = [figure for figure in figures if figure["bench"] == "mount_encode" and "shape" in figure]
    names = [f"{figure['shape']}\n{figure['protocol']}" for figure in encode]
    places = range(len(encode))
    mount.bar([place - 0.2 for place in places], [f["rows_per_s"] / 1000 for f in encode], 0.4, label="columnar")
    mount.bar(
        [place + 0.2 for place in places], [f.get("scalar_rows_per_s", 0) / 1000 for f in encode], 0.4, label="scalar"
    )
    mount.set_xticks(list(places), names, fontsize=8)
    mount.set_title("mount + encode, thousand rows/s on one core")
    mount.legend()
    ratios = [figure for figure in figures if figure["bench"] == "sorter_vs_copy" and "ratio" in figure]
    sorter.bar(
        [str(figure.get("protocol", number)) for number, figure in enumerate(ratios)], [f["ratio"] for f in ratios]
    )
    sorter.axhline(0.6, linestyle="--", color="grey")
    sorter.set_title("sorter ÷ plain Spark copy")
    lags = [figure for figure in figures if figure["bench"] == "lag" and "p50_s" in figure]
    for number, figure in enumerate(lags):
        lag.bar([number - 0.2, number + 0.2], [figure["p50_s"], figure["p99_s"]], 0.4, color=["C0", "C1"])
    lag.set_xticks([])
    lag.set_title("lag p50, p99 in s")
    picture.tight_layout()
    picture.savefig(path, dpi=110)
    pyplot.close(picture)


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    sys.exit(main())
