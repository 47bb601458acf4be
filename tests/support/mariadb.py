"""A MariaDB for tests; where none can be had, tests that need it skip and say so."""

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from compose.stack.mariadb import LocalMariaDb, MariaDbMissingError


@contextmanager
def started_or_skip(server: LocalMariaDb) -> Iterator[LocalMariaDb]:
    """Start a server, and stop it afterwards."""
    with ExitStack() as stack:
        try:
            stack.enter_context(server)
        except MariaDbMissingError as error:
            warnings.warn(f"NOT TESTED, the MySQL sink needs a MariaDB: {error}", stacklevel=1)
            pytest.skip(f"no MariaDB: {error}")
        yield server


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalMariaDb]:
    """A server of the session's own, empty."""
    with started_or_skip(LocalMariaDb(data=tmp_path_factory.mktemp("mariadb"))) as server:
        yield server
