"""What a former release left in a MariaDB when somebody had added partitions to a changefeed's own topic."""

from compose.stack.mariadb import LocalMariaDb
from consumers.verify.border import snapshot
from schemas.sink.topic import PARTITIONS
from tests.support.database.apply import Processor
from tests.support.database.apply_tables import feed
from tests.support.database.mariadb import mariadb
from tests.support.database.verify import connector
from tests.support.topics.sink_log import SinkLog

__all__ = ["feed", "mariadb"]


def test_positions_of_partitions_that_no_sorter_writes_are_of_no_table(mariadb: LocalMariaDb, feed: str) -> None:
    processor = Processor(mariadb, SinkLog(PARTITIONS + 1), feed)
    processor.open()
    processor.close()
    with snapshot(connector(mariadb), feed) as seen:
        assert len(seen.borders) == PARTITIONS
