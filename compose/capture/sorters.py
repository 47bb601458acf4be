"""A capture's part in sorting: its service, which outlives its sessions, and as owner who runs which changefeed."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

from compose.capture.settings.options import CaptureOptions
from compose.stack.children import TIDEBUS, Nursery
from consumers.control.changefeeds.states import FeedStates
from consumers.control.cluster.capture_registry import CaptureWatch
from consumers.control.core.changefeeds.errors import FeedError
from consumers.control.core.changefeeds.state import PATIENCE
from consumers.control.fleets.service_fleet import ServiceFleet
from consumers.control.fleets.settings import BY_HAND, BusAddresses
from consumers.control.fleets.sorter_assigner import SorterAssigner
from edges.kafka.access import KafkaAccess
from edges.zookeeper.session import Session
from schemas.errors import BusError
from schemas.nodes.changefeed import ChangefeedInfo, ZkPaths

Held = Callable[[ChangefeedInfo], FeedError | None]
"""For which tables of the upstream a changefeed waits."""


def bus_addresses(options: CaptureOptions, kafka: KafkaAccess | None) -> BusAddresses:
    """Return where children find the bus; ``kafka``: with rights of their own, None: with the capture's."""
    return BusAddresses(
        kafka=kafka or options.kafka,
        zookeeper=options.zookeeper,
        schema_registry=options.schema_registry,
        cluster=options.cluster,
        upstream=options.upstream,
    )


@contextlib.contextmanager
def running_services(options: CaptureOptions, *, is_heir: bool) -> Iterator[ServiceFleet | None]:
    """Run the services of a capture's process while inside; None: it runs none.

    Args:
        is_heir: see :class:`ServiceFleet`.
    """
    if options.sorters.master == BY_HAND:
        yield None
        return
    addresses = bus_addresses(options, options.sorter_kafka)
    paths = ZkPaths(options.cluster)
    with ServiceFleet(paths, addresses, Nursery(), TIDEBUS, options.sorters, is_heir=is_heir) as fleet:
        yield fleet


def assigner(
    options: CaptureOptions, session: Session, watch: CaptureWatch, on_failure: Callable[[BusError], None]
) -> Callable[[int, Held], SorterAssigner]:
    """Return what makes the assigner of a reign, from the owner's revision and from what changefeeds wait for."""
    paths, first_s = ZkPaths(options.cluster), options.sorters.retry_first_s
    patience = replace(PATIENCE, first_s=first_s, interval_s_max=max(first_s, PATIENCE.interval_s_max))

    def make(revision: int, held: Held) -> SorterAssigner:
        states = FeedStates(session, paths, options.upstream, patience=patience, held=held)
        return SorterAssigner(session, paths, states, revision, lambda: watch.captures, on_fatal=on_failure)

    return make
