"""`tidebus run`: the whole bus on this machine, shown live, summed up and checked at the end."""

import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from rich.console import Console
from rich.live import Live

from compose.local.bus import NO_PARAMETERS, BusOptions, LocalBus
from compose.local.data_folder import data_folder
from compose.local.first_frontier import FirstFrontier
from compose.local.live_view import live_picture, progress_line, summary_table, topics_line
from compose.local.monitor import BusView, Monitor
from compose.local.self_check import check_changefeed
from compose.ports import LOOPBACK, free_ports, is_free
from compose.stack.errors import ChildError
from compose.stack.jars import checkout
from compose.stack.local import Addresses
from compose.stack.secure.folder import StackSecrets
from consumers.control.changefeeds.store import ChangefeedRequest
from producers.pull.pd.client import PdClient
from producers.region_server.recording import read_recording
from producers.tls import Channels, TlsSettings
from schemas.config.changefeed import parse_changefeed_text
from schemas.errors import BusError, ConfigError
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedState, ZkPaths

TICK_S = 0.25
LINE_EVERY_S = 5.0
"""Between progress lines where there is no terminal to draw on."""
FIRST_FRONTIER_S = 90.0
"""A capture registers, is elected and scans the schema in a few seconds; a loaded machine takes a minute."""
DRAIN_S = 180.0
"""How long the checkpoints may take to pass what was in the log when the time was up: a first batch on a loaded machine
may hold all of it."""
START_S = 180.0
"""How long the sorters may take to their first checkpoint before the time of ``for_s`` starts to count all the same."""
API_PORT = 8300
WIDTH_CHARS = 150
DEMO_PROTOCOLS = ("canal-json", "avro")
"""One changefeed each; their files are demo/*.toml beside this, their topics start with what stands here before '-'."""
DEMO_BY_SPARK: Final = "avro-demo"
"""The one whose file says ``run-cuts = "spark"``."""

ENDED: Final[frozenset[ChangefeedState]] = frozenset({"stopped", "failed", "finished", "removed"})
"""States that a changefeed leaves only when its user says so."""


class Interrupted(Exception):  # noqa: N818 # not an error: the user has seen enough
    """Ctrl-C or SIGTERM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRunOptions:
    """What `tidebus run` takes."""

    data_dir: Path
    given: Addresses = field(default_factory=Addresses)
    pd: str = ""
    tls: TlsSettings = field(default_factory=TlsSettings)
    """Secures the streams to the PD given, and to its TiKV stores."""
    secure: bool = False
    """Lock down whatever is started here."""
    upstream: UpstreamId
    recording: Path | None = None
    """None: the checkout's own, where there is one."""
    speed: float = 0.0
    generate_rows_per_s: float = 1000.0
    for_s: float | None = None
    exit_at_end: bool = False
    master: str = "local[1]"
    keep_data: bool = False


def live_run(options: LiveRunOptions) -> int:
    """Run until Ctrl-C, the time is up, or the end is reached.

    Returns 1 if a promise was broken, a changefeed has failed or a part died.

    Raises:
        BusError: it could not even start.
    """
    # What is printed holds error codes in brackets, which are no markup; without a terminal nobody else sets a width.
    console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else WIDTH_CHARS)
    started_at = time.monotonic()
    recording = options.recording or _own_recording()
    end_ts = read_recording(recording).end_ts if options.exit_at_end and recording and not options.pd else None
    if options.exit_at_end and end_ts is None:
        raise ConfigError("exit-at-end needs a recording, and a region server that is started here", key="exit-at-end")
    if options.tls.enabled and not options.pd:
        raise ConfigError("TLS is for a PD that --pd names; the region server that is started here has none", key="ca")
    Channels(options.tls)  # a file that cannot be used is said before ten seconds of starting
    if options.secure and options.keep_data:
        raise ConfigError("the secrets of a locked-down run are made anew, so nothing is kept of it", key="keep")
    interrupted = "stopped before everything had started"
    with data_folder(options.data_dir / options.upstream, keep=options.keep_data) as data, _interruptible():
        bus = _bus_in(data, options, recording, say=partial(console.print, style="dim"))  # above the live picture
        console.print(f"starting {_parts(options)}; the first rows are in topics in some 15 s", style="dim")
        try:
            with bus:
                interrupted = "stopped at once: nothing was waited for or checked"
                try:
                    return _Session(options, bus, console, end_ts, started_at).run()
                finally:
                    # Stopping takes seconds; an impatient second Ctrl-C must not cut it short.
                    for number in (signal.SIGINT, signal.SIGTERM):
                        signal.signal(number, signal.SIG_IGN)
        except Interrupted:
            console.print(interrupted)
            return 130


def _bus_in(data: Path, options: LiveRunOptions, recording: Path | None, say: Callable[..., None]) -> LocalBus:
    return LocalBus(
        BusOptions(
            data_dir=data,
            given=options.given,
            pd=options.pd,
            tls=options.tls,
            secrets=StackSecrets.make(data.resolve() / "secrets") if options.secure else None,
            upstream=options.upstream,
            recording=recording,
            speed=options.speed,
            generate_rows_per_s=options.generate_rows_per_s,
            master=options.master,
            api_addr=_api_addr(),
        ),
        say=say,
    )


def _api_addr() -> str:
    """Return TiCDC's address for the API, where the command line looks; another port if that one is taken."""
    return f"{LOOPBACK}:{API_PORT if is_free(API_PORT) else free_ports(1)[0]}"


def _parts(options: LiveRunOptions) -> str:
    """Name what is started here."""
    given = {
        "ZooKeeper": options.given.zookeeper,
        "Kafka": options.given.kafka,
        "a schema registry": options.given.schema_registry,
        "a region server": options.pd,
    }
    return ", ".join([*(name for name, address in given.items() if not address), "a capture and its sorter service"])


class _Session:
    """One run over a bus that has started."""

    def __init__(
        self, options: LiveRunOptions, bus: LocalBus, console: Console, end_ts: Ts | None, started_at: float
    ) -> None:
        self._options, self._bus, self._console, self._end_ts = options, bus, console, end_ts
        self._pd = PdClient(bus.pd, channels=Channels(bus.tls))
        self._started_at = started_at
        self._flowing: set[str] = set()
        """Changefeeds that have written rows, and UIs of Spark that were named."""

    def run(self) -> int:
        """Create the changefeeds, show them, then sum up."""
        paths = ZkPaths(self._bus.options.cluster)
        prefixes = tuple(protocol.split("-")[0] for protocol in DEMO_PROTOCOLS)
        with (
            closing(self._pd),  # before the region server goes: gRPC would tell the terminal so
            Monitor(self._bus.addresses, paths, self._options.upstream, self._pd.now, prefixes) as monitor,
        ):
            try:
                self._create_changefeeds(monitor)
                self._show(monitor)
            except ChildError as error:
                self._console.print(str(error), style="red")
                return 1
            except Interrupted:
                self._console.print("stopping: waiting for the checkpoints to pass what is in the log")
            return self._sum_up(monitor)

    def _create_changefeeds(self, monitor: Monitor) -> None:
        self._say("capture starts: it is elected, reads the schema and opens the raw log")
        for protocol in DEMO_PROTOCOLS:
            request = demo_changefeed(protocol, self._bus.addresses, self._options.upstream, self._bus.sink_parameters)
            assert request.changefeed_id is not None
            if request.changefeed_id in monitor.changefeed_ids():
                continue
            first = FirstFrontier(self._bus, request, self._say)
            self._wait(first.create, FIRST_FRONTIER_S, first.complaint)
            self._say(f"changefeed {request.changefeed_id} is created; its sorter starts")

    def _say(self, text: str) -> None:
        """Print a line, above the live picture if there is one."""
        self._console.print(f"{text} ({self._elapsed():.1f} s)", style="dim")

    def _say_what_flows(self, view: BusView) -> None:
        for feed in view.feeds:
            if feed.rows_total and feed.changefeed_id not in self._flowing:
                self._flowing.add(feed.changefeed_id)
                self._say(f"{feed.changefeed_id} has written its first rows")

    def _say_where_spark_is(self, view: BusView) -> None:
        for address in view.spark_uis:
            if address not in self._flowing:
                self._flowing.add(address)
                self._say(f"Spark's UI is at {address}: it runs every cut of {DEMO_BY_SPARK}, and backlogs of all")

    def _show(self, monitor: Monitor) -> None:
        deadline = None if self._options.for_s is None else Deadline(self._options.for_s)
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            with Live(console=self._console, auto_refresh=False) as live:
                self._watch(monitor, deadline, Picture(live, self._elapsed))
            return
        shown_at = [0.0]

        def line(view: BusView) -> None:
            if self._elapsed() - shown_at[0] >= LINE_EVERY_S:
                shown_at[0] = self._elapsed()
                self._console.print(progress_line(view, self._elapsed()), soft_wrap=True)

        self._watch(monitor, deadline, line)

    def _watch(self, monitor: Monitor, deadline: "Deadline | None", show: Callable[[BusView], None]) -> None:
        while True:
            self._bus.tick()
            view = monitor.view()
            self._say_what_flows(view)
            self._say_where_spark_is(view)
            show(view)
            if deadline is not None and deadline.is_over(all_passed(view, Ts(0))):
                return
            if self._options.exit_at_end and self._end_ts is not None and all_passed(view, self._end_ts):
                return
            time.sleep(TICK_S)

    def _sum_up(self, monitor: Monitor) -> int:
        frontier = monitor.view().frontier
        goal = frontier.resolved_ts if frontier else Ts(0)
        late = not self._wait(lambda: all_passed(monitor.view(), goal), DRAIN_S, None)
        view = monitor.view()
        self._console.print(summary_table(view, self._elapsed()))
        # A file gets each as one line; a terminal gets it broken between words.
        self._console.print(topics_line(view), soft_wrap=not self._console.is_terminal)
        for name, deaths in self._bus.supervisor.deaths().items():
            self._console.print(f"{name} died {deaths} times; its log is in {self._bus.logs}", style="yellow")
        for feed in view.feeds:
            if feed.status and feed.status.sorter_deaths:
                text = f"sorter of {feed.changefeed_id} died {feed.status.sorter_deaths} times"
                self._console.print(f"{text}; its log is below {self._bus.options.data_dir}/captures", style="yellow")
        failed = [feed for feed in view.feeds if feed.state == "failed"]
        for feed in failed:
            error = feed.status and feed.status.error
            self._console.print(f"{feed.changefeed_id} has failed: {error and error.message}", style="red")
        broken = self._check(view)
        if late:
            self._console.print(f"checkpoints did not pass {goal} within {DRAIN_S:.0f} s", style="red")
        return 1 if broken or late or failed else 0

    def _check(self, view: BusView) -> bool:
        broken = False
        for feed in view.feeds:
            try:
                result = check_changefeed(
                    self._bus.addresses.kafka_access,
                    self._bus.addresses.zookeeper_access,
                    cluster=self._bus.options.cluster,
                    changefeed_id=feed.changefeed_id,
                )
            except BusError as error:
                self._console.print(f"self check of {feed.changefeed_id} failed: {error}", style="red")
                broken = True
                continue
            for line in result.lines():
                self._console.print(line, soft_wrap=not self._console.is_terminal)
            broken |= not result.ok
        return broken

    def _wait(self, done: Callable[[], bool], timeout_s: float, complaint: Callable[[], str] | None) -> bool:
        deadline = time.monotonic() + timeout_s
        while not done():
            self._bus.tick()
            if time.monotonic() > deadline:
                if complaint is None:
                    return False
                last = "\n".join(child.tail(4) for child in self._bus.processes.values())
                raise ChildError(f"{complaint()} within {timeout_s:.0f} s", logs=self._bus.logs, last=last)
            time.sleep(TICK_S)
        return True

    def _elapsed(self) -> float:
        return time.monotonic() - self._started_at


class Picture:
    """Draws views one over the other; drawn anew on a clean screen when the terminal has got another size.

    A terminal breaks lines anew when it gets narrower, so nobody knows then how far up the last picture begins.
    """

    def __init__(self, live: Live, elapsed_s: Callable[[], float]) -> None:
        self._live, self._elapsed_s = live, elapsed_s
        self._size = live.console.size

    def __call__(self, view: BusView) -> None:
        """Draw one view."""
        console = self._live.console
        if console.size != self._size:
            self._size = console.size
            console.clear()
        self._live.update(live_picture(view, self._elapsed_s(), console.width), refresh=True)


class Deadline:
    """The time of a run counts from when everything flows: starting is as slow as the machine is busy."""

    def __init__(self, for_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._for_s, self._clock = for_s, clock
        self._started_at = clock()
        self._flows_at: float | None = None

    def is_over(self, flows: bool) -> bool:
        """Tell whether the time is up; ``flows``: every changefeed has a checkpoint."""
        now = self._clock()
        if self._flows_at is None and (flows or now - self._started_at > START_S):
            self._flows_at = now
        return self._flows_at is not None and now - self._flows_at >= self._for_s


def demo_changefeed(
    protocol: str, addresses: Addresses, upstream: UpstreamId, sink_parameters: Mapping[str, str] = NO_PARAMETERS
) -> ChangefeedRequest:
    """Return the request of one of the two changefeeds that a run shows, from the raw log's first ts on."""
    name = f"{protocol}-demo"
    uri = f"kafka://{addresses.kafka}/{name}?protocol={protocol}&enable-tidb-extension=true&partition-num=3"
    if protocol == "avro":
        uri += f"&schema-registry={addresses.schema_registry}"
    if sink_parameters:
        uri += "&" + urlencode(sink_parameters)
    text = (Path(__file__).parent / "demo" / f"{protocol}.toml").read_text()
    config, _ = parse_changefeed_text(text, file=f"{protocol}.toml")
    return ChangefeedRequest(upstream=upstream, sink_uri=uri, config=config, changefeed_id=name)


def all_passed(view: BusView, ts: Ts) -> bool:
    """Tell whether all changefeeds have come to ``ts``, but for those that cannot: paused or failed ones."""
    awaited = [feed.status for feed in view.feeds if feed.state not in ENDED]
    return bool(view.feeds) and all(status is not None and status.checkpoint_ts >= ts for status in awaited)


def _own_recording() -> Path | None:
    root = checkout()
    folder = root / "tests" / "data" / "tidb" if root else None
    return folder if folder and folder.is_dir() else None


@contextmanager
def _interruptible() -> Iterator[None]:
    """Turn SIGINT and SIGTERM into :class:`Interrupted`, once: the second Ctrl-C ends the drain as well."""

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
