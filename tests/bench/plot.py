"""Draws what the benches printed: one panel a bench, an empty one where it has not run."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Figures = Sequence[dict[str, Any]]
COPY_AIM = 0.8
"""sorter ÷ copy must not be below."""
FURTHER_FEED_AIM = 0.5
"""A further changefeed must not cost more than that of the first one."""
NEIGHBOUR_LAG_AIM = 1.5
"""A neighbour's p99 may not be higher while another changefeed replays, by its p99 before."""
WIDTHS = (3, 1.5, 1.5, 1.5, 1.5)
"""Of the panels of a row."""


def draw(figures: Figures, path: Path) -> None:
    """Write one picture of all figures."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = -(-len(PANELS) // len(WIDTHS))
    picture, panels = pyplot.subplots(rows, len(WIDTHS), figsize=(26, 5 * rows), width_ratios=WIDTHS)
    for axes in panels.flat[len(PANELS) :]:
        axes.axis("off")
    for (bench, (title, fill)), axes in zip(PANELS.items(), panels.flat[: len(PANELS)], strict=True):
        mine = [figure for figure in figures if figure["bench"] == bench]
        axes.set_title(title if mine else f"{title}\n(has not run)")
        if mine:
            fill(axes, mine)
    picture.tight_layout()
    picture.savefig(path, dpi=110)
    pyplot.close(picture)


def _image_scan(axes: Any, figures: Figures) -> None:
    axes.bar([figure["to"] for figure in figures], [figure["rows_per_cpu_s"] / 1000 for figure in figures])


def _snapshot(axes: Any, figures: Figures) -> None:
    measured = [figure for figure in figures if figure["rows_per_cpu_s"] is not None]
    _bars(axes, [f"{f['rows']:,} rows" for f in measured], [f["rows_per_cpu_s"] / 1000 for f in measured])


def _mount_encode(axes: Any, figures: Figures) -> None:
    encode = [figure for figure in figures if "shape" in figure]
    places = range(len(encode))
    axes.bar([x - 0.2 for x in places], [f["rows_per_s"] / 1000 for f in encode], 0.4, label="columnar")
    scalar = [f.get("scalar_rows_per_s", 0) / 1000 for f in encode]
    axes.bar([x + 0.2 for x in places], scalar, 0.4, label="scalar")
    axes.set_xticks(list(places), [f"{f['shape']} {f['protocol']}" for f in encode], fontsize=8, rotation=90)
    axes.legend()


def _proofs(axes: Any, figures: Figures) -> None:
    _bars(axes, [f"{f['shape']}\n{f['cut_rows']:,}" for f in figures], [f["sent_ratio"] for f in figures])


def _sorter_vs_copy(axes: Any, figures: Figures) -> None:
    ratios = [figure for figure in figures if "ratio" in figure]
    _bars(axes, [str(f.get("protocol", number)) for number, f in enumerate(ratios)], [f["ratio"] for f in ratios])
    axes.axhline(COPY_AIM, linestyle="--", color="grey")


def _lag(axes: Any, figures: Figures) -> None:
    for figure in figures:
        for name in ("p50_s", "p99_s", "max_s"):
            _bars(axes, [f"{name[:-2]},\n{figure['rows_per_s']:,}/s"], [figure[name]])


def _puller(axes: Any, figures: Figures) -> None:
    _bars(axes, [f"to {f['to']}" for f in figures], [f["rows_per_s"] / 1000 for f in figures])
    _bars(axes, [f"to {f['to']},\nby CPU" for f in figures], [f["cpu_rows_per_s"] / 1000 for f in figures])


def _lake_tables(axes: Any, figures: Figures) -> None:
    _bars(axes, [f"{f['tables']}" for f in figures], [f["commit_cpu_s"] for f in figures])


def _big_transaction(axes: Any, figures: Figures) -> None:
    last = figures[-1]
    _bars(axes, ["transaction"], [last["bytes"] / (1 << 20)])
    _bars(axes, ["peak memory"], [last["peak_rss_mb"]])
    axes.set_xlabel(f"{last['rows_per_s'] / 1000:,.0f} thousand rows/s", fontsize=8)


def _idle_regions(axes: Any, figures: Figures) -> None:
    names = [f"{f['regions'] / 1000:,.0f}k,\n{f['tables']} tables" for f in figures]
    _bars(axes, names, [f["cpu_cores"] for f in figures])


def _zookeeper_requests(axes: Any, figures: Figures) -> None:
    for is_moving, label in ((False, "at rest"), (True, "moving")):
        mine = [figure for figure in figures if figure["moving"] is is_moving]
        axes.plot([f["feeds"] for f in mine], [f["requests_per_s"] for f in mine], marker="o", label=label)
    axes.set_xlabel("changefeeds", fontsize=8)
    axes.set_ylim(bottom=0)
    axes.legend()


def _many_feeds(axes: Any, figures: Figures) -> None:
    by_number = sorted(figures, key=lambda figure: int(figure["feeds"]))
    scales = {"p99_s": 1.0, "cores": 1.0, "idle_cores": 1.0, "memory_mb": 1e-3, "messages_per_s": 1e-4}
    labels = ("p99, s", "cores", "idle cores", "memory, GB", "10,000 messages/s")
    for (name, scale), label in zip(scales.items(), labels, strict=True):
        axes.plot([f["feeds"] for f in by_number], [f[name] * scale for f in by_number], marker="o", label=label)
    axes.set_xscale("log")
    axes.set_xlabel("changefeeds", fontsize=8)
    axes.legend(fontsize=7)


def _second_feed(axes: Any, figures: Figures) -> None:
    _bars(axes, ["ratio"], [figures[-1]["ratio"]])
    axes.axhline(FURTHER_FEED_AIM, linestyle="--", color="grey")


def _lag_during_backlog(axes: Any, figures: Figures) -> None:
    _bars(axes, ["ratio"], [figures[-1]["ratio"]])
    axes.axhline(NEIGHBOUR_LAG_AIM, linestyle="--", color="grey")


def _catch_up(axes: Any, figures: Figures) -> None:
    _bars(axes, [f"{f['how']},\nk rows/CPU s" for f in figures], [f["rows_per_cpu_s"] / 1000 for f in figures])
    _bars(axes, [f"{f['how']},\ns" for f in figures], [f["seconds"] for f in figures])


def _idle_bus(axes: Any, figures: Figures) -> None:
    names = ("capture", "service", "feed")
    _bars(axes, list(names), [figures[-1][f"{name}_cores"] for name in names])


def _whole_bus(axes: Any, figures: Figures) -> None:
    _bars(axes, [f["protocol"] for f in figures], [f["rows_per_cpu_s"] / 1000 for f in figures])


def _backlog(axes: Any, figures: Figures) -> None:
    names = [f"{f['rows'] / 1e6:g} M rows" for f in figures]
    _bars(axes, names, [f["rows_per_s"] / 1000 for f in figures])
    _bars(axes, [f"{name},\nGiB" for name in names], [f["peak_rss_mb"] / 1024 for f in figures])


def _many_tables_batch(axes: Any, figures: Figures) -> None:
    last = figures[-1]
    few, many = f"{last['busy_tables']:,} tables", f"{last['tables']:,} tables"
    _bars(axes, [few, many, "after\na DDL"], [last["few_tables_batch_s"], last["batch_s"], last["ddl_batch_s"]])


def _big_transaction_batch(axes: Any, figures: Figures) -> None:
    last = figures[-1]
    _bars(axes, ["seconds"], [last["seconds"]])
    _bars(axes, ["peak,\nGiB"], [last["peak_rss_mb"] / 1024])
    axes.set_xlabel(f"{last['rows'] / 1e6:g} million rows", fontsize=8)


def _failover(axes: Any, figures: Figures) -> None:
    last = figures[-1]
    _bars(
        axes,
        ["session", "beyond it", "resigned"],
        [last["session_timeout_s"], last["beyond_session_s"], last["resign_s"]],
    )


def _move_pause(axes: Any, figures: Figures) -> None:
    last = figures[-1]
    _bars(axes, ["median", "worst", "without\na move"], [last["seconds"], last["worst_s"], last["usual_s"]])


def _many_tables(axes: Any, figures: Figures) -> None:
    last = figures[-1]
    _bars(axes, ["assigned after\n100 s", "idle, cores"], [last["assign_s"] / 100, last["idle_cores"]])
    axes.set_xlabel(f"{last['tables']:,} tables", fontsize=8)


def _verify(axes: Any, figures: Figures) -> None:
    last = figures[-1]
    rates = [last["rows_per_cpu_s"] / 1000, last["python_rows_per_s"] / 1000]
    _bars(axes, ["both sides\nby SQL", "hashes\nin Python"], rates)


def _beside_plain(axes: Any, figures: Figures) -> None:
    _bars(axes, ["ratio"], [figures[-1]["ratio"]])


def _spark_floor(axes: Any, figures: Figures) -> None:
    last = figures[-1]
    names = ("p50_ms", "cpu_ms", "plain_p50_ms", "plain_cpu_ms")
    _bars(axes, [name[:-3].replace("_", "\n") for name in names], [last[name] for name in names])


def _bars(axes: Any, names: list[str], values: list[float]) -> None:
    bars = axes.bar(names, values)
    axes.bar_label(bars, fmt="{:,.3g}", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)


def _spark_source(axes: Any, figures: Figures) -> None:
    names, ours, theirs = (list(each) for each in zip(*map(_spark_source_bars, figures), strict=True))
    _bars(axes, names, ours)
    _bars(axes, [f"{name},\ncanal-json" for name in names], theirs)


def _spark_source_bars(figure: dict[str, Any]) -> tuple[str, float, float]:
    return figure["way"], figure["changes_per_cpu_s"] / 1000, figure["canal_changes_per_cpu_s"] / 1000


PANELS: dict[str, tuple[str, Callable[[Any, Figures], None]]] = {
    "mount_encode": ("mount + encode, thousand rows/s on one core", _mount_encode),
    "sorter_vs_copy": ("sorter ÷ plain Spark copy", _sorter_vs_copy),
    "whole_bus": ("whole bus, thousand rows per CPU second", _whole_bus),
    "backlog": ("backlog: thousand rows/s, GiB at most", _backlog),
    "many_tables_batch": ("seconds for a batch over 1,000 tables", _many_tables_batch),
    "big_transaction_batch": ("one transaction through the sorter", _big_transaction_batch),
    "lag": ("lag in s", _lag),
    "lag_spark": ("lag in s, all cuts by Spark", _lag),
    "lag_cluster": ("lag in s, all cuts by executors", _lag),
    "lag_high": ("lag in s at high rates", _lag),
    "spark_source": ("Spark source, thousand changes per CPU second", _spark_source),
    "spark_floor": ("a Spark job of one empty task, ms", _spark_floor),
    "proofs": ("flow proofs ÷ a row's CPU, by rows of a cut", _proofs),
    "puller": ("puller, thousand rows/s", _puller),
    "image_scan": ("image scan, thousand rows per CPU second", _image_scan),
    "snapshot": ("table image by the whole bus, thousand rows per CPU second", _snapshot),
    "big_transaction": ("one large transaction, MiB", _big_transaction),
    "idle_regions": ("idle regions: cores of the client", _idle_regions),
    "failover": ("owner killed: seconds until R moves", _failover),
    "move_pause": ("a table moves: seconds that R stands", _move_pause),
    "many_tables": ("very many tables over two captures", _many_tables),
    "mysql_apply": ("MySQL sink ÷ bare REPLACE loop", _beside_plain),
    "many_feeds": ("cost by the number of changefeeds", _many_feeds),
    "second_feed": ("a further changefeed ÷ the first one, CPU", _second_feed),
    "catch_up": ("500,000 rows after a stop", _catch_up),
    "lag_during_backlog": ("a neighbour's p99 during a backlog ÷ before", _lag_during_backlog),
    "idle_bus": ("idle, cores", _idle_bus),
    "zookeeper_requests": ("requests a second at ZooKeeper", _zookeeper_requests),
    "verify": ("rows compared, thousand per CPU second", _verify),
    "storage_write": ("storage sink ÷ plain write", _beside_plain),
    "lake": ("Iceberg sink ÷ plain Spark MERGE, CPU", _beside_plain),
    "lake_tables": ("CPU seconds a commit\nby Iceberg tables", _lake_tables),
}
