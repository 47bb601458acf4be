"""A capture's sorter service as a real process over one raw log written by hand, and the owner who gives it changefeeds
and judges them: started, killed, replaced."""

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from compose.stack.local import Addresses
from consumers.control.changefeeds.verbs import ConfigChange
from consumers.control.core.changefeeds.service_plan import dedicated_id
from schemas.ids import Ts
from schemas.nodes.changefeed import ZkPaths
from schemas.running_feeds import SLOT_BYTES, running_file
from tests.support.control.lasting_session import lasting_session
from tests.support.processes.sorter_fleet import CANAL, ROWS, Fleet, FleetBus, eventually
from tests.support.rawlog.raw_log import START_TS


@pytest.fixture(scope="module")
def bus(stack: Addresses, fresh_name: Callable[[str], str]) -> Iterator[FleetBus]:
    with lasting_session(stack.zookeeper_access) as session:
        yield FleetBus(stack, session, ZkPaths(fresh_name("cluster")), fresh_name("up"))


@pytest.fixture(scope="module")
def fleet(bus: FleetBus, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(bus, tmp_path_factory.mktemp("fleet"))
    with fleet.services, fleet.services.attached(bus.session), fleet.assigner:
        yield fleet


def test_fleet_runs_changefeeds_of_two_protocols_filters_and_namespaces_and_minds_one_that_dies(
    bus: FleetBus, fleet: Fleet, fresh_name: Callable[[str], str]
) -> None:
    canal, avro = fresh_name("canal"), fresh_name("avro")
    bus.create("all", f"{canal}?{CANAL}")
    other = {"filter": {"event-filters": [{"matcher": ["sb.*"], "ignore-insert-value-expr": "id >= 50"}]}}
    registry = f"schema-registry={bus.stack.schema_registry}"
    bus.create("some", f"{avro}?protocol=avro&partition-num=1&{registry}", "other", config=other)
    upto = bus.write()
    bus.wait_checkpoint("all", upto)
    bus.wait_checkpoint("some", upto, "other")
    assert bus.ids(canal) == list(range(ROWS))
    assert bus.commits(avro) == [START_TS + 1 + 10 * number for number in range(50)]
    assert set(fleet.assigned()) == {("default", "all"), ("other", "some")}
    pid = fleet.pid
    os.killpg(pid, signal.SIGKILL)
    upto = bus.write()
    well = bus.wait_checkpoint("all", upto)
    assert well.error is None
    bus.wait_checkpoint("some", upto, "other")
    assert fleet.pid != pid
    assert bus.ids(canal) == list(range(2 * ROWS)), "nothing lost, and no batch was cut in two"


def test_fleet_changefeed_that_two_services_died_of_is_run_by_one_of_its_own(
    bus: FleetBus, fleet: Fleet, fresh_name: Callable[[str], str]
) -> None:
    name, topic = fresh_name("poison"), fresh_name("topic")
    bus.create(name, f"{topic}?{CANAL}")
    upto = bus.newest_ts if bus.newest_ts > START_TS else bus.write()
    bus.wait_checkpoint(name, upto)
    file = running_file(fleet.services._folder(), fleet.services.service_id)
    for deaths in (1, 2):
        pid = fleet.pid
        os.kill(pid, signal.SIGSTOP)
        slot = b"/".join((b"default", name.encode())).ljust(SLOT_BYTES, b"\0")
        file.write_bytes(bytes(SLOT_BYTES) + slot)  # as if it were at work for it
        os.killpg(pid, signal.SIGKILL)
        died = bus.wait(name, lambda status, deaths=deaths: status.sorter_deaths == deaths)  # type: ignore[misc]
        assert died.error is not None
        assert (died.error.code, "signal 9" in died.error.message) == ("sorter.died", True)
        upto = bus.write()
        well = bus.wait_checkpoint(name, upto)
        assert (well.error, well.sorter_deaths) == (None, deaths)
    own = dedicated_id(fleet.services.service_id, ("default", name))
    assert fleet.assigned()["default", name] == own
    assert own in fleet.services.pids()
    bus.control.remove(name)
    eventually(lambda: own not in fleet.services.pids())


def test_fleet_changefeed_paused_updated_resumed_overwritten_and_removed_while_another_goes_on(
    bus: FleetBus, fleet: Fleet, fresh_name: Callable[[str], str]
) -> None:
    name, first, second = fresh_name("feed"), fresh_name("first"), fresh_name("second")
    bus.create(name, f"{first}?{CANAL}")
    upto = bus.newest_ts if bus.newest_ts > START_TS else bus.write()
    bus.wait_checkpoint(name, upto)
    written = bus.ids(first)
    pid, paused_at = fleet.pid, time.monotonic()
    bus.control.pause(name)
    eventually(lambda: ("default", name) not in fleet.assigned())
    lock = bus.paths.changefeed_sorter("default", name)
    eventually(lambda: bus.session.client.exists(lock) is None)
    assert time.monotonic() - paused_at < 30
    stopped = bus.wait(name, lambda status: status.state == "stopped")
    newest = bus.write()
    bus.control.configure(name, ConfigChange(sink_uri=f"kafka://{bus.stack.kafka}/{second}?{CANAL}"))
    status = bus.status(name)
    assert status is not None
    assert status.checkpoint_ts == stopped.checkpoint_ts
    middle = Ts(START_TS + 501)
    bus.control.resume(name, overwrite_checkpoint_ts=middle)
    bus.wait_checkpoint(name, newest)
    assert bus.ids(first) == written, "the sink of before gets nothing more"
    assert bus.ids(second) == list(range(51, len(written) + ROWS)), "from the new checkpoint on"
    bus.control.remove(name)
    eventually(lambda: ("default", name) not in fleet.assigned())
    assert name not in [info.changefeed_id for info in bus.control.store.list()]
    assert fleet.pid == pid, "one process for all"


def test_fleet_changefeed_with_a_target_finishes_and_one_that_cannot_work_fails_at_once(
    bus: FleetBus, fleet: Fleet, fresh_name: Callable[[str], str]
) -> None:
    done, bad, topic = fresh_name("done"), fresh_name("bad"), fresh_name("sink")
    upto = bus.newest_ts if bus.newest_ts > START_TS else bus.write()
    bus.create(done, f"{topic}?{CANAL}", target_ts=Ts(START_TS + 501))
    dispatch = {"sink": {"dispatchers": [{"matcher": ["*.*"], "partition": "index-value", "index": "none-such"}]}}
    bus.create(bad, f"{fresh_name('sink')}?{CANAL}", config=dispatch)
    finished = bus.wait(done, lambda status: status.state == "finished")
    assert (finished.checkpoint_ts, finished.error) == (START_TS + 501, None)
    assert upto > START_TS + 501 and bus.ids(topic) == list(range(51))
    failed = bus.wait(bad, lambda status: status.state == "failed")
    assert failed.error is not None
    assert (failed.error.code, failed.checkpoint_ts, failed.sorter_deaths) == ("sorter.dispatch_failed", START_TS, 0)
    assert "none-such" in failed.error.message
    eventually(lambda: not {("default", done), ("default", bad)} & fleet.assigned().keys())
    for name in (done, bad):
        bus.control.remove(name)
