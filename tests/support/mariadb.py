"""One MariaDB for a test session; where none can be had, tests that need it skip and say so."""

import warnings
from collections.abc import Iterator

import pytest

from compose.stack.mariadb import LocalMariaDb, MariaDbMissingError


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalMariaDb]:
    """A server of the session's own, empty."""
    server = LocalMariaDb(data=tmp_path_factory.mktemp("mariadb"))
    try:
        server.start()
    except MariaDbMissingError as error:
        warnings.warn(f"NOT TESTED, the MySQL sink needs a MariaDB: {error}", stacklevel=1)
        pytest.skip(f"no MariaDB: {error}")
    with server:
        yield server
