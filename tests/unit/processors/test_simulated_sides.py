"""The simulated sides of a processor have only methods that the product's have: a renamed one is noticed at once."""

import pytest

from compose.simulation.processors.board import Board
from compose.simulation.processors.calls import DestinationOf, Runner, TopicSource
from compose.simulation.processors.process import SimSides
from consumers.processors.apply.begin import DatabaseSides
from consumers.processors.apply.ddl import DdlRunner
from consumers.processors.apply.destination import DatabaseDestination
from consumers.processors.apply.syncpoints import SyncpointWriter
from consumers.processors.board import ProcessorBoard
from consumers.processors.sink_source import KafkaSource


def public(*kinds: type) -> set[str]:
    """Return the names of the public methods."""
    return {name for kind in kinds for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))}


@pytest.mark.parametrize(
    ("simulated", "product"),
    [
        (Board, (ProcessorBoard,)),
        (DestinationOf, (DatabaseDestination,)),
        (Runner, (DdlRunner, SyncpointWriter)),
        (SimSides, (DatabaseSides,)),
        (TopicSource, (KafkaSource,)),
    ],
)
def test_simulated_side_has_no_method_that_the_product_does_not_know(
    simulated: type, product: tuple[type, ...]
) -> None:
    assert public(simulated) <= public(*product) | {"connect"}
