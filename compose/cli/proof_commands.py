"""``tidebus proofs …``: what a changefeed read and wrote, for an auditor to keep and to check."""

import sys
from typing import IO, TYPE_CHECKING

import click

from compose.cli.changefeed import namespace_option
from compose.cli.options.access import kafka_option
from compose.cli.options.kinds import Command, Id
from compose.cli.options.names import upstream_option
from compose.echo import echo
from schemas.ids import UpstreamId

if TYPE_CHECKING:
    from edges.kafka.access import KafkaAccess

FINDINGS_SHOWN_MAX = 100


@click.group()
def proofs() -> None:
    """Keep and check what sorters counted: rows landed, left out and written, chained by hash."""


def _of_changefeed(command: Command) -> Command:
    changefeed = click.option("-c", "--changefeed", "changefeed_id", type=Id(), required=True, metavar="ID")
    return kafka_option(required=True)(upstream_option(changefeed(namespace_option(command))))


@proofs.command()
@_of_changefeed
def export(kafka: "KafkaAccess", upstream: str, changefeed_id: str, namespace: str) -> None:
    """Print a changefeed's records, one a line, as they stand in the topic."""
    from compose.operator.proofs import NoProofsError, read_proofs

    out, records = sys.stdout.buffer, 0
    for content in read_proofs(kafka, UpstreamId(upstream), (namespace, changefeed_id)):
        out.write(content + b"\n")
        records += 1
    if not records:
        text = (
            "no record of this changefeed is there: it has run no cut, 30 days have passed, or it is called otherwise"
        )
        raise NoProofsError(text, changefeed=changefeed_id, namespace=namespace, upstream=upstream)


@proofs.command()
@click.argument("file", type=click.File("rb"))
def check(file: IO[bytes]) -> int:
    """Check a file of `export`; exit status 1 if a record is altered, missing or does not come out even, or if there is
    none.
    """
    from schemas.flow.chain import check_chain

    report = check_chain(line.rstrip(b"\n") for line in file)
    for finding in report.findings[:FINDINGS_SHOWN_MAX]:
        echo(f"line {finding.line}: {finding.fault}: {finding.said}")
    if len(report.findings) > FINDINGS_SHOWN_MAX:
        echo(f"and {len(report.findings) - FINDINGS_SHOWN_MAX} more")
    for gap in report.unproved:
        echo(f"line {gap.line}: note: nothing is told of ({gap.after_ts}, {gap.upto_ts}]: a run ended before it could")
    for (namespace, changefeed), first in sorted(report.begins.items()):
        if first.number:
            echo(f"{namespace}/{changefeed}: note: begins with record {first.number}; those before it are not here")
    for (namespace, changefeed), head in sorted(report.heads.items()):
        where = f"record {head.number}, ts {head.window.upto_ts}, hash {head.hash}"
        echo(f"{namespace}/{changefeed}: up to {where}")
    echo(f"{report.records} records, {report.rows} rows written, {len(report.findings)} faults")
    if not report.records:
        echo("the file holds no record, so it proves nothing")
    return 1 if report.findings or not report.records else 0
