"""The commands that look, print and end."""

import difflib
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from compose.cli.given_files import changefeed_text
from compose.cli.options.access import kafka_option, pd_option, tls_options
from compose.cli.options.kinds import Duration
from compose.cli.options.names import recording_option, upstream_option, zone_option
from compose.echo import echo
from schemas.config.sink.sink import AVRO_PROTOCOLS
from schemas.errors import BusError, ConfigError
from schemas.ids import UpstreamId

if TYPE_CHECKING:
    from edges.kafka.access import KafkaAccess
    from producers.tls import TlsSettings

DRY_RUN_URI_DEFAULT = "kafka://127.0.0.1:9092/tidebus?protocol=canal-json&enable-tidb-extension=true"


@click.command()
@click.option("--spark-only", is_flag=True, help="Only what a sorter needs: Spark's Kafka connector, and Iceberg.")
def setup(spark_only: bool) -> None:
    """Fetch the jars of the local stack and of Spark (once); compare them with the checksums.

    Without --spark-only it also notes which classes their JVMs load, by which these start sooner.
    """
    from compose.stack.jars import PARTS, SPARK_PARTS, fetch
    from compose.stack.spark_home import make_spark_home

    fetch(SPARK_PARTS if spark_only else PARTS, echo)
    make_spark_home()
    if not spark_only:
        from compose.stack.archive_setup import make_archives

        make_archives(echo)


@click.command()
@pd_option(required=False)
@tls_options
@kafka_option(required=False)
@upstream_option
def doctor(pd: str, tls: "TlsSettings", kafka: "KafkaAccess", upstream: str) -> int:
    """Say what this machine has and lacks; exit status 1 if something needed is missing.

    With --pd also whether that TiDB cluster can be reached and trusted, with --kafka whether an upstream's raw topics
    keep what they are given.
    """
    from compose.operator.doctor import examine, examine_raw_log, examine_upstream

    healthy = True
    beyond = examine_upstream(pd, tls) if pd else ()
    raw_log = examine_raw_log(kafka, UpstreamId(upstream)) if kafka.servers else ()
    for finding in itertools.chain(examine(Path("data")), beyond, raw_log):
        mark = "ok  " if finding.ok else ("FAIL" if finding.needed else "note")
        healthy &= finding.ok or not finding.needed
        echo(f"{mark}  {finding.name:<7} {finding.said}")
    return 0 if healthy else 1


@click.command()
@click.argument("code", required=False, default="")
def errors(code: str) -> int:
    """Say what an error code means and what follows; of all that begin with CODE, or of all. Logs show it in [ ]."""
    from compose.operator.error_codes import catalogue

    matching = [entry for entry in catalogue() if entry.code.startswith(code.strip("[]"))]
    for entry in matching:
        echo(f"{entry.code} ({entry.follows}): {entry.meaning}")
    if not matching:
        near = difflib.get_close_matches(code, [entry.code for entry in catalogue()], n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "`tidebus errors` lists them"
        raise ConfigError(f"no such error code; {hint}", seen=code)
    return 0


@click.command("dry-run")
@recording_option(required=False)
@click.option(
    "--feed",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with feed.jsonl.zst, a recorded event feed of TiKV; with --protocol raw.",
)
@click.option(
    "--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Changefeed file, TiCDC's TOML."
)
@click.option("--sink-uri", default=DRY_RUN_URI_DEFAULT, show_default=True, metavar="URI")
@click.option(
    "--protocol",
    default=None,
    help="Instead of the URI's; `mounted` prints the mounted rows, `raw` the row changes of --feed.",
)
@click.option(
    "--watermark-every", type=Duration(), default=None, help="Of recorded time, such as 10s; else one at the end."
)
@zone_option
@click.option("--strict", is_flag=True, help="End with status 1 where a changefeed would fail, instead of a warning.")
def dry_run(
    recording: Path | None,
    feed: Path | None,
    config: Path | None,
    sink_uri: str,
    protocol: str | None,
    watermark_every: float | None,
    tz: str,
    strict: bool,
) -> None:
    """Print every message that a changefeed would write, as JSON lines in commit order; no Kafka, no Spark.

    With --feed: the row changes of a recorded event feed, which the event feed's own client gets over loopback sockets.
    """
    if (recording is None) == (feed is None):
        raise ConfigError("give either --recording or --feed", key="recording")
    if (feed is not None) != (protocol == "raw"):
        # A feed holds no schemas: what stands in the job table begins only where the recording does.
        raise ConfigError("a recorded feed has the protocol raw only, and only it has", key="protocol", got=protocol)
    if feed is not None:
        _print_feed(feed)
        return
    assert recording is not None
    from compose.foresight.dry_run import json_line, prepare
    from schemas.config.changefeed import load_changefeed

    text = changefeed_text(config) if config else None
    if protocol not in (None, "mounted"):
        sink_uri = with_protocol(sink_uri, str(protocol))
    changefeed = load_changefeed(sink_uri, text, file=str(config) if config else None)
    if changefeed.uri.is_lake:
        raise ConfigError("a dry run prints messages, and lake tables have none", key="sink-uri")
    changefeed = replace(changefeed, time_zone=tz)
    every_ms = None if watermark_every is None else max(1, int(watermark_every * 1000))

    def refused(error: BusError) -> None:
        if strict:
            raise error
        echo(f"warning: a changefeed would fail here: {error}", err=True)

    prepared = prepare(recording, changefeed, refused=refused, watermark_every_ms=every_ms)
    for shown in prepared.mounted() if protocol == "mounted" else prepared.records():
        echo(json_line(shown))


def _print_feed(folder: Path) -> None:
    from compose.foresight.feed_dry_run import row_changes

    for row in row_changes(folder):
        echo(json.dumps(row, separators=(",", ":")))


@click.command()
@kafka_option(required=True)
@click.option("--topic", required=True, help="Any topic: of the raw log, or an output topic.")
@click.option("--partition", type=int, default=None, help="Only this one.")
@click.option("--from-offset", type=int, default=0, help="In every partition that is read.")
@click.option("--limit", type=int, default=None, help="Stop after so many lines.")
@click.option("--follow", is_flag=True, help="Go on when the end is reached.")
def decode(
    kafka: "KafkaAccess", topic: str, partition: int | None, from_offset: int, limit: int | None, follow: bool
) -> None:
    """Print a topic's records as JSON lines."""
    from compose.kafka_follower import TopicFollower
    from compose.operator.decode import decode_record

    printed = 0
    with TopicFollower(kafka, topic, partition=partition, from_offset=from_offset) as follower:
        for record in follower.follow() if follow else follower.read_to_end():
            for shown in decode_record(topic, record):
                echo(json.dumps(shown, ensure_ascii=False))
                printed += 1
                if limit is not None and printed >= limit:
                    return


def with_protocol(sink_uri: str, protocol: str) -> str:
    """Return the URI with its protocol parameter replaced.

    Raises:
        ConfigError: the protocol holds characters that would end the parameter.
    """
    if not protocol.replace("-", "").isalnum():
        raise ConfigError("protocol must be a name such as canal-json or avro", key="protocol", got=protocol)
    head, _, query = sink_uri.partition("?")
    kept = [part for part in query.split("&") if part and not part.startswith("protocol=")]
    if protocol in AVRO_PROTOCOLS and not any(part.startswith("schema-registry=") for part in kept):
        kept.append("schema-registry=http://127.0.0.1:8081")  # must be named, is never asked
    return f"{head}?{'&'.join([f'protocol={protocol}', *kept])}"
