"""The commands over what the raw log holds: what a changefeed would do, and an interval once more."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from compose.cli.given_files import changefeed_text
from compose.cli.options.access import kafka_option, registry_option, zookeeper_option
from compose.cli.options.names import UPSTREAM_DEFAULT, cluster_option, recording_option, upstream_option, zone_option
from compose.echo import echo
from schemas.errors import ConfigError
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import NAMESPACE_DEFAULT

if TYPE_CHECKING:
    from edges.kafka.access import KafkaAccess
    from edges.registry.access import RegistryAccess
    from edges.zookeeper.access import ZooKeeperAccess

_config_option = click.option(
    "--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Changefeed file, TiCDC's TOML."
)


@click.command()
@click.option("--sink-uri", default="", metavar="URI", help="kafka://HOST:PORT/TOPIC?protocol=…, as TiCDC takes it.")
@_config_option
@click.option("-c", "--changefeed-id", default="", metavar="ID", help="One that there is, instead of URI and file.")
@click.option("-n", "--namespace", default=NAMESPACE_DEFAULT, show_default=True)
@click.option("--start-ts", type=int, default=0, help="Tables as they stand at this TSO; 0: now, or its checkpoint.")
@click.option("--offline", is_flag=True, help="Do not ask the sink's brokers which topics there are.")
@click.option("--json", "in_json", is_flag=True, help="One JSON object instead of a table.")
@zone_option
@recording_option(required=False)
@upstream_option
@cluster_option
@kafka_option(required=False)
@zookeeper_option(required=False)
def explain(
    sink_uri: str,
    config: Path | None,
    changefeed_id: str,
    namespace: str,
    start_ts: int,
    offline: bool,
    in_json: bool,
    tz: str,
    recording: Path | None,
    upstream: str,
    cluster: str,
    kafka: "KafkaAccess",
    zookeeper: "ZooKeeperAccess",
) -> None:
    """Say for every table where its rows would go, in what, how large they may be, and which rights that needs; of a
    database, files and lake tables: under which name, by which key, in which columns.

    The tables are those of the raw log (--kafka) or of a recording (--recording); nothing is created or written.
    """
    from compose.foresight import destinations
    from compose.foresight.explain import (
        Changefeed,
        as_json,
        as_lines,
        explained,
        login_of,
        of_changefeed,
        raw_log_schemas,
        recorded_schemas,
    )
    from schemas.config.changefeed import load_changefeed

    if bool(changefeed_id) == bool(sink_uri):
        raise ConfigError("give either --sink-uri or --changefeed-id", key="sink-uri")
    if changefeed_id and not zookeeper:
        raise ConfigError("--changefeed-id needs --zookeeper", key="zookeeper")
    if (recording is None) == (not kafka):
        raise ConfigError("give either --kafka or --recording", key="kafka")
    if changefeed_id:
        wanted = of_changefeed(zookeeper, cluster, changefeed_id, namespace)
    else:
        text = changefeed_text(config) if config else None
        file = str(config) if config else None
        checked = replace(load_changefeed(sink_uri, text, file=file), time_zone=tz)
        wanted = Changefeed(
            config=checked, upstream=UpstreamId(upstream), ts=None, login=login_of(sink_uri, text, file)
        )
    ts = Ts(start_ts) if start_ts else wanted.ts
    schemas, at = recorded_schemas(recording, ts) if recording else raw_log_schemas(kafka, wanted.upstream, ts)
    if wanted.config.uri.brokers:
        if wanted.login is None and not offline:
            echo("note: the sink's brokers are not asked: a secret that a reference stands for is not here", err=True)
        explanation = explained(wanted.config, schemas, at, login=None if offline else wanted.login)
        shown, lines = as_json(explanation), as_lines(explanation)
    else:
        destination = destinations.destined(wanted.config, schemas, at)
        shown, lines = as_json(destination), destinations.as_lines(destination)
    for line in [json.dumps(shown, ensure_ascii=False)] if in_json else lines:
        echo(line)


@click.command()
@click.option("--from-ts", type=int, required=True, help="Rows above this TSO.")
@click.option("--to-ts", type=int, required=True, help="The last TSO, inclusive.")
@click.option("--sink-uri", required=True, metavar="URI", help="kafka://HOST:PORT/TOPIC?protocol=…: other topics.")
@_config_option
@click.option("--name", default="remount", show_default=True, help="In the names of files that large messages go to.")
@click.option("--master", default="local[2]", show_default=True, help="Spark's.")
@click.option("--data-dir", type=click.Path(path_type=Path), default=Path("data/remount"), show_default=True)
@zone_option
@upstream_option
@kafka_option(required=True)
@registry_option(required=False)
def remount(
    from_ts: int,
    to_ts: int,
    sink_uri: str,
    config: Path | None,
    name: str,
    master: str,
    data_dir: Path,
    tz: str,
    upstream: str,
    kafka: "KafkaAccess",
    schema_registry: "RegistryAccess",
) -> None:
    """Write an interval that the raw log still holds once more, in any protocol, filter and dispatch, and end.

    Two runs write the same bytes. No changefeed may write to the same topics.
    """
    from compose.stack.spark_files import name_spark_files
    from edges.secrets import resolve
    from schemas.config.changefeed import load_changefeed
    from sorters.run.remount import Remount, check, remount_alone

    text = changefeed_text(config) if config else None
    checked = load_changefeed(sink_uri, text, file=str(config) if config else None, resolve=resolve)
    for note in checked.notes:
        echo(f"note: {note}", err=True)
    order = Remount(
        kafka=kafka,
        upstream=UpstreamId(upstream or UPSTREAM_DEFAULT),
        config=replace(checked, time_zone=tz),
        from_ts=Ts(from_ts),
        to_ts=Ts(to_ts),
        name=name,
        schema_registry=schema_registry,
        data_dir=data_dir,
    )
    check(order)
    name_spark_files()
    done = remount_alone(order, master, lambda progress: echo(f"written up to {progress.checkpoint_ts}", err=True))
    echo(json.dumps({"rows": done.rows, "cuts": done.cuts, "corrupt_rows": done.corrupt_rows}))
