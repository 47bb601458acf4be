"""How far a running changefeed is, as everybody reads it who is not its sorter service: on a real ZooKeeper."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from compose.stack.local import Addresses
from consumers.control.changefeeds.feed_nodes import APPLIED, INFO, STATUS, FeedNodes
from consumers.control.changefeeds.processor_nodes import AppliedNode, encode_applied
from consumers.control.changefeeds.service_nodes import ServiceNodes
from consumers.control.changefeeds.store import ChangefeedRequest
from consumers.control.changefeeds.verbs import ChangefeedControl
from consumers.control.log.raw_log import RetainedFrontier
from consumers.processors.processor import ProcessorOptions
from consumers.processors.recovery import stored
from edges.kafka.access import KafkaAccess
from edges.zookeeper.session import Session
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo, ZkPaths
from schemas.nodes.feed_figures import FeedFigures
from schemas.nodes.service_paths import ServicePaths
from schemas.sink.topic import life_of
from schemas.sink_figures import SinkFigures
from sorters.core.cut.beginning import BegunEpoch, decode_begun, encode_begun
from sorters.run.nodes.status import Edition, StatusBoard
from tests.support.control.lasting_session import lasting_session
from tests.support.processes.service_progress import WrittenProgress, entry

KAFKA, MYSQL = "kafka://127.0.0.1:9092/t?protocol=canal-json", "mysql://root@127.0.0.1:3306/"


@dataclass
class Cluster:
    session: Session
    paths: ZkPaths

    def __post_init__(self) -> None:
        self.control = ChangefeedControl(self.session, self.paths)
        self.service = WrittenProgress(self.session.client, self.paths)

    def create(self, name: str, uri: str = KAFKA) -> ChangefeedInfo:
        request = ChangefeedRequest(
            upstream=UpstreamId("u"), sink_uri=uri, config={}, changefeed_id=name, start_ts=Ts(100)
        )
        return self.control.store.create(request, RetainedFrontier(Ts(50), Ts(200)))

    def zxid(self, name: str) -> int:
        return int(self.session.client.get(self.paths.changefeed_info("default", name))[1].czxid)

    def board(self, name: str) -> StatusBoard:
        return StatusBoard(self.session.client, self.paths, "default", name)

    def opened(self, name: str) -> tuple[StatusBoard, Ts]:
        board = self.board(name)
        current = board.info()
        assert current is not None
        return board, board.open(*current)


@pytest.fixture
def cluster(stack: Addresses, fresh_name: Callable[[str], str]) -> Iterator[Cluster]:
    with lasting_session(stack.zookeeper_access) as session:
        yield Cluster(session, ZkPaths(fresh_name("cluster")))


def begun(after_ts: int, start: int) -> str:
    return encode_begun(BegunEpoch("tidebus.u.frontier", Ts(after_ts), start, start + 5)).decode()


def test_status_is_what_the_service_says_where_it_is_further(cluster: Cluster) -> None:
    cluster.create("cf")
    assert cluster.control.store.status("cf") is None
    cluster.service.write(entry(("default", "cf"), cluster.zxid("cf"), 150, rows_total=7, spark_rows_total=3))
    status = cluster.control.store.status("cf")
    assert status is not None
    assert (status.state, status.checkpoint_ts, status.rows_total, status.spark_rows_total) == ("normal", 150, 7, 3)
    board, _ = cluster.opened("cf")
    board.report(checkpoint_ts=Ts(170))
    folded = cluster.control.store.status("cf")
    assert folded is not None
    assert folded.checkpoint_ts == 170


def test_of_two_epochs_from_one_checkpoint_the_later_holders_is_repeated(cluster: Cluster) -> None:
    cluster.create("cf")
    name, zxid = ("default", "cf"), cluster.zxid("cf")
    former = WrittenProgress(cluster.session.client, cluster.paths, "service-b")
    former.write(entry(name, zxid, 150, revision=1, begun=begun(150, 30)))
    cluster.service.write(entry(name, zxid, 150, revision=2, begun=begun(150, 20)))
    board, _ = cluster.opened("cf")
    assert board.begun() == begun(150, 20).encode()


def test_sorter_by_hand_goes_on_from_where_a_service_was(cluster: Cluster) -> None:
    cluster.create("cf")
    board, checkpoint_ts = cluster.opened("cf")
    assert (checkpoint_ts, board.begun()) == (100, None)
    board.begin(begun(100, 3).encode(), Ts(100))
    board.report(checkpoint_ts=Ts(120))
    name, zxid = ("default", "cf"), cluster.zxid("cf")
    former = WrittenProgress(cluster.session.client, cluster.paths, "service-former")
    former.write(entry(name, zxid, 140, revision=1, begun=begun(130, 20)))
    cluster.service.write(entry(name, zxid, 150, revision=2, begun=begun(150, 30)))
    board, checkpoint_ts = cluster.opened("cf")
    assert checkpoint_ts == 150
    assert decode_begun(board.begun()) == BegunEpoch("tidebus.u.frontier", Ts(150), 30, 35)
    cluster.service.write(entry(name, zxid, 149, revision=2, begun=begun(150, 30)))
    board, checkpoint_ts = cluster.opened("cf")
    assert (checkpoint_ts, decode_begun(board.begun())) == (149, BegunEpoch("tidebus.u.frontier", Ts(130), 20, 25))
    board.report(resolved_ts=Ts(160))
    status = board.status(Edition(zxid, 0))
    assert status is not None
    assert status.checkpoint_ts == 149, "what the service has reached is the sorter's own to write now"


def test_what_a_service_has_begun_before_a_user_set_the_checkpoint_is_not_gone_on_with(cluster: Cluster) -> None:
    cluster.create("cf")
    board, _ = cluster.opened("cf")
    board.report(checkpoint_ts=Ts(110))
    cluster.service.write(entry(("default", "cf"), cluster.zxid("cf"), 500, begun=begun(120, 20)))
    cluster.control.pause("cf")
    assert cluster.control.resume("cf", overwrite_checkpoint_ts=Ts(130)).checkpoint_ts == 130
    board, checkpoint_ts = cluster.opened("cf")
    assert (checkpoint_ts, board.begun()) == (130, None)


def test_checkpoint_set_before_any_status_is_written_stands_against_the_service(cluster: Cluster) -> None:
    cluster.create("cf")
    cluster.service.write(entry(("default", "cf"), cluster.zxid("cf"), 500))
    cluster.control.pause("cf")
    cluster.control.resume("cf", overwrite_checkpoint_ts=Ts(130))
    status = cluster.control.store.status("cf")
    assert status is not None
    assert (status.checkpoint_ts, status.set_epoch) == (130, 1)


def test_recovery_knows_how_far_the_service_has_sorted(cluster: Cluster) -> None:
    cluster.create("cf", MYSQL)
    cluster.service.write(entry(("default", "cf"), cluster.zxid("cf"), 180))
    options = ProcessorOptions(
        changefeed_id="cf",
        cluster=cluster.paths.cluster,
        kafka=KafkaAccess("127.0.0.1:1"),
        zookeeper=None,  # type: ignore[arg-type] # the session is there
    )
    assert stored(cluster.session, options).sorted_ts == 180


def test_many_changefeeds_are_read_by_one_request_for_each_node_that_has_changed(cluster: Cluster) -> None:
    infos = [cluster.create(f"cf-{number:03}", MYSQL if number % 2 else KAFKA) for number in range(100)]
    names = [("default", info.changefeed_id) for info in infos]
    nodes = FeedNodes(cluster.session, cluster.paths, (INFO, STATUS, APPLIED))
    views = nodes.refresh()
    assert ([*sorted(views)], {view.stored().checkpoint_ts for view in views.values()}) == (names, {100})
    cluster.service.write(*(entry(name, cluster.zxid(name[1]), 150, rows_total=5) for name in names))
    applied = AppliedNode(life=life_of(infos[1]), checkpoint_ts=Ts(140), rows_total=4)
    cluster.session.client.create(cluster.paths.changefeed_applied(*names[1]), encode_applied(applied))
    feeds = {name: view.stored() for name, view in nodes.refresh().items()}
    assert (feeds[names[0]].checkpoint_ts, feeds[names[0]].resolved_ts) == (150, 150)
    assert (feeds[names[1]].checkpoint_ts, feeds[names[1]].resolved_ts) == (140, 150)
    status, sorter = feeds[names[1]].status, feeds[names[1]].sorter_status
    assert status is not None
    assert sorter is not None
    assert (status.rows_total, sorter.rows_total) == (4, 5)
    cluster.service.write(*(entry(name, cluster.zxid(name[1]), 150, rows_total=5) for name in names))
    nodes.refresh()
    before = nodes.cache.requests_total
    for checkpoint_ts in (160, 170):
        cluster.service.write(*(entry(name, cluster.zxid(name[1]), checkpoint_ts) for name in names))
        views = nodes.refresh()
        assert {view.stored().resolved_ts for view in views.values()} == {checkpoint_ts}
    assert nodes.cache.requests_total - before == 2 * 7, "100 entries are seven nodes, of 16 each"
    assert nodes.refresh() is views
    cluster.control.remove("cf-007")
    assert names[7] not in nodes.refresh()
    nodes.close()


def test_figures_of_a_run_are_told_by_whoever_reads_its_entry_and_no_former_holders(cluster: Cluster) -> None:
    cluster.create("cf")
    name, zxid = ("default", "cf"), cluster.zxid("cf")
    views, services = FeedNodes(cluster.session, cluster.paths), ServiceNodes(cluster.session, cluster.paths)

    def read_by_all() -> set[tuple[str, int]]:
        """Return by whom: which service's run, by its number of proven windows."""
        stored = services.read()
        status, view = cluster.control.store.status("cf"), views.refresh()[name]
        assert status is not None
        assert view.entry is not None
        opened = cluster.opened("cf")[0].opened
        assert opened is not None
        counted = stored.entries()[name, zxid].figures
        assert counted == view.entry.figures
        assert counted.sent == view.stored().sink
        return {
            (counted.reason, counted.windows_proven),
            (view.entry.figures.reason, status.windows_proven),
            (counted.reason, opened.windows_proven),
        }

    former = WrittenProgress(cluster.session.client, cluster.paths, "service-former")
    theirs = FeedFigures(reason="backlog", windows_proven=70, sent=SinkFigures(file_bytes=9))
    former.write(entry(name, zxid, 140, revision=1, figures=theirs))
    assert read_by_all() == {("backlog", 70)}
    cluster.service.write(entry(name, zxid, 150, revision=2))
    assert read_by_all() == {("", 0)}
    ours = FeedFigures(reason="worth_a_job", windows_proven=2, sent=SinkFigures(file_bytes=1))
    cluster.service.write(entry(name, zxid, 150, revision=2, figures=ours))
    former.write(entry(name, zxid, 140, revision=1, figures=replace(theirs, windows_proven=71)))
    assert read_by_all() == {("worth_a_job", 2)}
    cluster.session.client.set(ServicePaths(cluster.paths).entry_figures("service-a", 0), b"[{")
    assert read_by_all() == {("", 0)}, "figures that nobody can read keep nobody from reading how far it is"
    views.close()
    services.close()
