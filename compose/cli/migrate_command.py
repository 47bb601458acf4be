"""``tidebus migrate --ticdc URL``: a running TiCDC's changefeeds judged, written as files, and taken over."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from compose.cli.changefeed import namespace_option
from compose.cli.options.kinds import Command
from compose.cli.options.server import ask, server_options
from compose.echo import echo, listed
from schemas.errors import ConfigError

if TYPE_CHECKING:
    from compose.operator.api_calls import ApiCalls
    from compose.operator.migration import Verdict

STATUS_REFUSED = 1


def _ticdc_options(command: Command) -> Command:
    for option in (
        click.option("--ticdc-password", default="", envvar="TICDC_PASSWORD", help="Of --ticdc-user."),
        click.option("--ticdc-user", default="", envvar="TICDC_USER", help="Where that TiCDC wants one."),
        click.option("--ticdc-key", default="", metavar="FILE", help="Key of --ticdc-cert."),
        click.option("--ticdc-cert", default="", metavar="FILE", help="Certificate that we show to it."),
        click.option("--ticdc-ca", default="", metavar="FILE", help="CA of that TiCDC (PEM)."),
        click.option("--ticdc", required=True, metavar="URL", help="Any server of a running TiCDC 6.6 or later."),
    ):
        command = option(command)
    return command


@click.command()
@_ticdc_options
@click.option("-c", "--changefeed-id", multiple=True, metavar="ID", help="Only these; again for more.")
@click.option("--sink-uri", multiple=True, metavar="ID=URI", help="Where TiCDC shows one without its secrets.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write each changefeed's file into this folder, as ID.toml.",
)
@click.option(
    "--take-over", is_flag=True, help="Pause those that run there, and create them here at their checkpoints."
)
@click.option(
    "--tz",
    default="",
    metavar="NAME",
    help="Zone of TiCDC's servers, in which it writes TIMESTAMPs into messages and files; --take-over wants it.",
)
@click.option("--no-confirm", is_flag=True, help="Do not ask.")
@namespace_option
@server_options
def migrate(
    api: "ApiCalls",
    namespace: str,
    changefeed_id: Sequence[str],
    sink_uri: Sequence[str],
    out: Path | None,
    take_over: bool,
    tz: str,
    no_confirm: bool,
    **ticdc: str,
) -> int:
    """Show what becomes of a running TiCDC's changefeeds here; write their files; take them over.

    Without --take-over nothing is changed anywhere. Exit status 1: at least one is refused.
    """
    from compose.operator.migration import file_text, judge, read_changefeeds
    from compose.stack.secure.certificates import write_private
    from consumers.control.changefeeds.store import check_id

    check_id("namespace", namespace)
    source, given = _client(ticdc), _given(sink_uri)
    changefeeds = read_changefeeds(source, namespace)
    known = {changefeed.changefeed_id for changefeed in changefeeds}
    for name in {*changefeed_id, *given} - known:
        raise ConfigError("TiCDC has no such changefeed", key="changefeed-id", got=name, known=", ".join(sorted(known)))
    verdicts = [
        judge(replace(changefeed, sink_uri=given.get(changefeed.changefeed_id, changefeed.sink_uri)))
        for changefeed in changefeeds
        if not changefeed_id or changefeed.changefeed_id in changefeed_id
    ]
    for verdict in verdicts:
        _show(verdict)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True, mode=0o700)
        for verdict in verdicts:
            file = out / verdict.changefeed.file_name
            write_private(file, file_text(verdict).encode())  # TiCDC shows the passwords of settings
            echo(f"wrote {file}", err=True)
    if take_over:
        _take_over(source, api, [verdict for verdict in verdicts if verdict.is_movable], tz, no_confirm)
    return STATUS_REFUSED if any(verdict.refusal for verdict in verdicts) else 0


def _show(verdict: "Verdict") -> None:
    from compose.operator.migration import MOVABLE
    from schemas.masking import mask_uri

    changefeed = verdict.changefeed
    judged = "refused" if verdict.refusal else f"{verdict.same} settings the same"
    judged += f", {len(verdict.differs)} that differ" if verdict.differs else ""
    echo(f"{changefeed.changefeed_id}: {changefeed.state}, {mask_uri(changefeed.sink_uri)}: {judged}")
    for line in verdict.differs:
        echo(f"  differs: {line}")
    if verdict.writes_times:
        echo("  zone: TIMESTAMPs come in that of our captures (--tz); TiCDC's API does not tell its servers'")
    if verdict.refusal is not None:
        echo(f"  refused: {verdict.refusal}")
    elif changefeed.state not in MOVABLE:
        echo(f"  it is {changefeed.state} there: --take-over leaves it, as nobody knows what it waits for")


def _take_over(
    source: "ApiCalls", api: "ApiCalls", verdicts: "Sequence[Verdict]", time_zone: str, no_confirm: bool
) -> None:
    from compose.operator.take_over import TakeOver, way_back

    changefeeds = [verdict.changefeed for verdict in verdicts]
    if not changefeeds:
        echo("nothing to take over")
        return
    taker = TakeOver(source, api)
    taker.check_zone(time_zone, [verdict.changefeed.changefeed_id for verdict in verdicts if verdict.writes_times])
    for changefeed in changefeeds:
        if left_out := taker.check(changefeed):
            words = f"tables without a key are left out, as by TiCDC: {listed(left_out)}"
            echo(f"{changefeed.changefeed_id}: {words}", err=True)
    names = ", ".join(changefeed.changefeed_id for changefeed in changefeeds)
    ask(f"Pause {names} in that TiCDC, and go on with them here?", no_confirm)
    for changefeed in changefeeds:
        taken = taker.run(changefeed)
        echo(f"{changefeed.changefeed_id}: taken over at {taken.start_ts}; paused there. To go back:")
        for line in way_back(taken, source.client.url):
            echo(f"  {line}")


def _given(sink_uris: Sequence[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for text in sink_uris:
        name, mark, uri = text.partition("=")
        if not mark or not uri:
            raise ConfigError("must be ID=URI", key="sink-uri", got=name)
        given[name] = uri
    return given


def _client(ticdc: dict[str, str]) -> "ApiCalls":
    from compose.operator.api_calls import ApiCalls
    from consumers.control.api.access.tls import ApiTls
    from consumers.control.api.client import TICDC, ApiClient

    tls = ApiTls(ca_path=ticdc["ticdc_ca"], cert_path=ticdc["ticdc_cert"], key_path=ticdc["ticdc_key"])
    user, password = ticdc["ticdc_user"], ticdc["ticdc_password"]
    return ApiCalls(ApiClient(url=ticdc["ticdc"], tls=tls, user=user, password=password, of=TICDC))
