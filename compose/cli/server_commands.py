"""The commands that run until they are told to stop."""

import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from compose.cli.given_files import writable_folder
from compose.cli.options.access import (
    child_kafka_options,
    cluster_secret_option,
    kafka_option,
    pd_option,
    registry_option,
    tls_options,
    zookeeper_option,
)
from compose.cli.options.api import ApiOptions, api_options
from compose.cli.options.images import image_options
from compose.cli.options.kinds import Duration
from compose.cli.options.logs import log_options
from compose.cli.options.names import cluster_option, data_dir_option, recording_option, upstream_option
from compose.cli.options.server_file import server_file_option
from compose.cli.options.spark import sorter_options
from compose.collector import OF_UPSTREAM, spare_old_objects
from compose.quick_imports import quick_imports
from schemas.ids import UpstreamId

if TYPE_CHECKING:
    from consumers.control.fleets.settings import SorterSettings
    from consumers.control.owner.reign_parts import ReignOptions
    from edges.kafka.access import KafkaAccess
    from edges.registry.access import RegistryAccess
    from edges.zookeeper.access import ZooKeeperAccess
    from producers.pull.images.settings import ImageScanSettings
    from producers.pull.puller import PullerSettings
    from producers.tls import TlsSettings


@click.command()
@kafka_option(required=False)
@zookeeper_option(required=False)
@registry_option(required=False)
@pd_option(required=False)
@tls_options
@upstream_option
@data_dir_option("data/run")
@recording_option(required=False)
@click.option("--speed", type=float, default=0.0, help="Of the replay: 1 as recorded, 0 as fast as it is read.")
@click.option(
    "--generate", "rows_per_s", type=float, default=1000.0, show_default=True, help="Rows/s after the replay."
)
@click.option("--for", "for_s", type=Duration(), default=None, metavar="DURATION", help="End after 90s, 2m, …")
@click.option("--exit-at-end", is_flag=True, help="End when every changefeed has passed the recording.")
@click.option("--master", default="local[1]", show_default=True, help="Spark master of each sorter.")
@click.option("--keep", is_flag=True, help="Go on with the data folder's topics instead of starting empty.")
@click.option("--secure", is_flag=True, help="Lock down what is started: TLS, users and least rights everywhere.")
def run(
    kafka: "KafkaAccess",
    zookeeper: "ZooKeeperAccess",
    schema_registry: "RegistryAccess",
    pd: str,
    upstream: str,
    data_dir: Path,
    recording: Path | None,
    speed: float,
    rows_per_s: float,
    for_s: float | None,
    exit_at_end: bool,
    master: str,
    keep: bool,
    secure: bool,
    tls: "TlsSettings",
) -> int:
    """Run the whole bus on this machine and show it live; parts given by address are not started."""
    from compose.local.live_run import LiveRunOptions, live_run
    from compose.stack.local import Addresses

    return live_run(
        LiveRunOptions(
            given=Addresses(
                kafka=kafka.servers,
                zookeeper=zookeeper.servers,
                schema_registry=schema_registry.url_with_user or schema_registry.url,
                kafka_config=kafka.config_file,
                zookeeper_config=zookeeper.config_file,
                schema_registry_config=schema_registry.config_file,
                sink_registry_configs=tuple(sink.config_file for sink in schema_registry.sinks),
            ),
            pd=pd,
            tls=tls,
            upstream=UpstreamId(upstream),
            data_dir=data_dir,
            recording=recording,
            speed=speed,
            generate_rows_per_s=0.0 if exit_at_end else rows_per_s,
            for_s=for_s,
            exit_at_end=exit_at_end,
            master=master,
            keep_data=keep,
            secure=secure,
        )
    )


@click.command("region-server")
@recording_option(required=False)
@click.option("--speed", type=float, default=0.0, help="Of the replay: 1 as recorded, 0 as fast as it is read.")
@click.option("--generate", "rows_per_s", type=float, default=0.0, help="Rows/s that a generator writes afterwards.")
@click.option("--rows-max", type=int, default=0, help="Of the generator; 0: it never ends.")
@click.option("--shapes", default="sbtest1", show_default=True, help="Of its rows: sbtest1, order_line, wide10.")
@click.option("--tables", type=int, default=4, show_default=True, help="Tables of the generator.")
@click.option("--txn-rows", type=int, default=5, show_default=True, help="Rows in a generated transaction.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the generator.")
@click.option("--pd-port", type=int, default=0, help="Port of PD; 0: a free one.")
@click.option("--stores", type=int, default=3, show_default=True, help="TiKV stores that it plays.")
@click.option("--pd-members", type=int, default=1, show_default=True, help="PD members; one leads.")
@click.option("--min-ts-interval", type=Duration(), default=0.2, show_default=True, help="Between resolved-ts rounds.")
@click.option("--control-port", type=int, help="HTTP port for cluster events (POST /chaos/split?key=…); 0: a free one.")
@click.option("--chaos", "chaos_seed", type=int, help="Split, merge, stop and move things at random, by this seed.")
@click.option("--chaos-every-s", type=float, default=1.0, show_default=True, help="Between two random events.")
@click.option("--wait-for-subscriber/--no-wait", default=True, help="Replay only once somebody listens.")
@click.option("--ca", default="", metavar="FILE", help="Serve those alone whose certificate this CA has signed (PEM).")
@click.option("--cert", default="", metavar="FILE", help="Certificate of all its servers; with --ca and --key.")
@click.option("--key", default="", metavar="FILE", help="Key of --cert, not encrypted.")
@log_options
def region_server(
    recording: Path | None,
    speed: float,
    rows_per_s: float,
    rows_max: int,
    shapes: str,
    tables: int,
    txn_rows: int,
    seed: int,
    pd_port: int,
    stores: int,
    pd_members: int,
    min_ts_interval: float,
    control_port: int | None,
    chaos_seed: int | None,
    chaos_every_s: float,
    wait_for_subscriber: bool,
    ca: str,
    cert: str,
    key: str,
) -> int:
    """Play a TiDB cluster's PD and TiKV on loopback, from a recording and then a generator.

    Prints one JSON object a line; the first, "listening", holds PD's address.
    """
    from producers.region_server.generator import GeneratorOptions
    from producers.region_server.main import RunOptions, run
    from producers.region_server.rpc.server_tls import ServerTls
    from producers.region_server.server import RegionServerOptions

    if any((ca, cert, key)) and not all((ca, cert, key)):
        raise click.UsageError("--ca, --cert and --key come together")

    spare_old_objects(OF_UPSTREAM)
    run(
        RunOptions(
            server=RegionServerOptions(
                pd_port=pd_port,
                pd_members=pd_members,
                stores=stores,
                min_ts_interval_ms=int(min_ts_interval * 1000),
                tls=ServerTls(ca_path=ca, cert_path=cert, key_path=key) if ca else None,
            ),
            control_port=control_port,
            chaos_seed=chaos_seed,
            chaos_every_s=chaos_every_s,
            recording=recording,
            speed=speed,
            wait_for_subscriber=wait_for_subscriber,
            generator=GeneratorOptions(
                rows_per_s=rows_per_s,
                rows_max=rows_max,
                tables=tables,
                txn_rows=txn_rows,
                shapes=tuple(shapes.split(",")),
                seed=seed,
            )
            if rows_per_s or rows_max
            else None,
        ),
        until_stopped(),
    )
    return 0


@click.command()
@server_file_option
@click.option(
    "--tz",
    default="System",
    show_default=True,
    metavar="ZONE",
    help="Zone in which changefeeds that are created here write TIMESTAMPs; System: this machine's.",
)
@pd_option(required=True)
@tls_options
@kafka_option(required=True)
@zookeeper_option(required=True)
@registry_option(required=True)
@cluster_option
@upstream_option
@click.option(
    "--gc-ttl",
    type=Duration(),
    default=86_400.0,
    show_default=True,
    help="How long TiKV keeps history for a capture that is away, in seconds or as 24h.",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="TIDEBUS_DATA_DIR",
    help="This capture's own folder, for transactions too large for memory; the default is the system's temporary one.",
)
@click.option(
    "--matcher-memory-bytes-max",
    type=click.IntRange(min=1 << 20),
    help="Memory for open transactions; what is more goes to disk.  [default: 128 MiB]",
)
@click.option(
    "--streams-per-store-max",
    type=click.IntRange(min=1),
    help="Streams to one store that has no EventFeedV2: each of its tables needs one.  [default: 256]",
)
@click.option(
    "--enable-table-across-nodes",
    is_flag=True,
    help="Pull a table of many regions in several spans, over several raw partitions.",
)
@click.option(
    "--region-threshold",
    type=click.IntRange(min=0),
    default=100_000,
    show_default=True,
    help="Regions from which on a table is pulled in several spans.",
)
@click.option(
    "--held-lag",
    type=Duration(),
    default=10.0,
    show_default=True,
    help="A table that is further behind the others is held: only changefeeds that contain it wait for it.",
)
@api_options
@click.option(
    "--peer-addr",
    default="127.0.0.1:0",
    show_default=True,
    metavar="HOST:PORT",
    help="Listen here for the other captures of the cluster; port 0: any.",
)
@click.option(
    "--advertise-peer-addr", default="", metavar="HOST:PORT", help="Where they reach it. [default: --peer-addr]"
)
@cluster_secret_option
@click.option(
    "--graceful-stop-timeout",
    type=Duration(),
    default=30.0,
    show_default=True,
    help="How long a capture that is stopped waits for others to take its tables over, in seconds or as 1m.",
)
@image_options
@sorter_options
@child_kafka_options
@log_options
def capture(
    tz: str,
    pd: str,
    kafka: "KafkaAccess",
    zookeeper: "ZooKeeperAccess",
    schema_registry: "RegistryAccess",
    cluster: str,
    upstream: str,
    gc_ttl: float,
    tls: "TlsSettings",
    data_dir: Path | None,
    matcher_memory_bytes_max: int | None,
    streams_per_store_max: int | None,
    enable_table_across_nodes: bool,
    region_threshold: int,
    held_lag: float,
    api: ApiOptions,
    peer_addr: str,
    advertise_peer_addr: str,
    cluster_secret_file: Path | None,
    graceful_stop_timeout: float,
    images: "ImageScanSettings",
    sorters: "SorterSettings",
    sorter_kafka_config: Path | None,
    processor_kafka_config: Path | None,
) -> int:
    """Pull an upstream's changes into the raw log; one of the captures of a cluster is its owner, and says
    which of their sorter services runs which changefeed."""
    with quick_imports():
        from compose.capture.process import run_capture
        from compose.capture.settings.options import CaptureOptions
        from compose.capture.settings.server_zone import server_zone
        from consumers.control.fleets.settings import BY_HAND
        from edges.kafka.java_properties import java_properties
        from producers.tls import Channels

    # What cannot be used is said at once, before anything is asked of anybody.
    Channels(tls)
    time_zone = server_zone(tz)
    if data_dir is not None:
        writable_folder(data_dir)
    sorter_kafka, processor_kafka = kafka.as_child(sorter_kafka_config), kafka.as_child(processor_kafka_config)
    if sorters.master != BY_HAND:
        java_properties(sorter_kafka or kafka)
    options = CaptureOptions(
        pd=pd,
        kafka=kafka,
        zookeeper=zookeeper,
        schema_registry=schema_registry,
        cluster=cluster,
        upstream=UpstreamId(upstream),
        time_zone=time_zone,
        puller=_puller_settings(tls, int(gc_ttl), data_dir, images, matcher_memory_bytes_max, streams_per_store_max),
        reign=_reign_options(held_lag, enable_table_across_nodes, region_threshold),
        sorters=replace(sorters, data_dir=data_dir),
        sorter_kafka=sorter_kafka,
        processor_kafka=processor_kafka,
        addr=api.addr,
        advertise_addr=api.advertise_addr,
        mtls=api.mtls,
        credentials=api.credentials,
        api_hosts=api.api_hosts,
        peer_addr=peer_addr,
        advertise_peer_addr=advertise_peer_addr,
        cluster_secret_file=cluster_secret_file,
        graceful_stop_timeout_s=graceful_stop_timeout,
    )
    return run_capture(options)


def _reign_options(held_lag_s: float, enable_table_across_nodes: bool, region_threshold: int) -> "ReignOptions":
    from consumers.control.core.frontier.span_split import SplitSettings
    from consumers.control.owner.reign_parts import ReignOptions

    split = SplitSettings(enable_table_across_nodes=enable_table_across_nodes, region_threshold=region_threshold)
    return ReignOptions(held_lag_s=held_lag_s, split=split)


def _puller_settings(
    tls: "TlsSettings",
    gc_ttl_s: int,
    data_dir: Path | None,
    images: "ImageScanSettings",
    matcher_bytes: int | None,
    streams: int | None,
) -> "PullerSettings":
    from producers.pull.feed.spill_files import SpillSettings
    from producers.pull.puller import PullerSettings

    spill = SpillSettings(folder=data_dir / "spill" if data_dir is not None else None)
    settings = PullerSettings(tls=tls, gc_ttl_s=gc_ttl_s, spill=spill, images=images)
    if streams is not None:
        settings = replace(settings, feed=replace(settings.feed, streams_per_store_max=streams))
    return settings if matcher_bytes is None else replace(settings, matcher_memory_bytes_max=matcher_bytes)


def until_stopped() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    return stopped
