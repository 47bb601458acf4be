"""A MariaDB for tests; where none can be had, tests that need it skip and say so."""

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import pytest
from pymysql.connections import Connection

from compose.stack.mariadb import LocalMariaDb, MariaDbMissingError

_create_ssl_ctx: Any = vars(Connection)["_create_ssl_ctx"]


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
    with (
        started_or_skip(LocalMariaDb(data=tmp_path_factory.mktemp("mariadb"))) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(Connection, "_create_ssl_ctx", _shared_when_nothing_is_asked)
        yield server


def _shared_when_nothing_is_asked(connection: object, asked: Any) -> Any:
    """Make the TLS context of connections without settings once: it reads all authorities of the machine, which costs
    more than most tests, and checks nothing.
    """
    return _plain_context() if asked == {} else _create_ssl_ctx(connection, asked)


@cache
def _plain_context() -> Any:
    return _create_ssl_ctx(None, {})
