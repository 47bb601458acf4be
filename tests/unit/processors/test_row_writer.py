"""Rows with an ENUM's error value, which are written outside strict mode: what the server warns of is looked at."""

import pytest

from consumers.processors.apply.connection import Connector
from consumers.processors.apply.errors import RowRefusedError
from consumers.processors.apply.row_writer import write_rows
from consumers.processors.core.apply.statements import StatementSettings
from consumers.processors.core.apply.waiting import RowBatch, RowSlice
from schemas.config.changefeed import load_changefeed
from schemas.sink.position import RowOp
from schemas.sink.sql_rows import LOOSE, SqlRow, decode_rows, encode_rows
from tests.support.database.fake_tidb import Affected, Answer, FakeTidb, Rows
from tests.support.topics.sink_log import form

T = form("d.t", "id", "e")
MOVE = b"UPDATE tidebus.position SET position = 'x'"
TRUNCATED = ("Warning", "1265", "Data truncated for column 'e' at row 1")
DEPRECATED = ("Warning", "1287", "'VALUES function' is deprecated and will be removed in a future release.")
TOO_LONG = ("Warning", "1406", "Data too long for column 'v' at row 1")


def _write(warnings: Rows) -> list[str]:
    """Change a row; return what the server was told."""

    def answer(sql: str) -> Answer:
        if sql == "SHOW WARNINGS":
            return warnings
        return Affected(1) if sql.startswith("UPDATE") else None

    row = SqlRow(9, 8, RowOp.UPDATE | LOOSE, b"1", b"(1,0)")
    message = decode_rows(encode_rows(T, [row]))
    with FakeTidb(answer) as server:
        config = load_changefeed(server.uri)
        assert config.uri.server is not None
        connection = Connector(config.uri.server, config)()
        try:
            write_rows(connection, MOVE, RowBatch((RowSlice(T, message, 0, 1, 0),)), StatementSettings())
        finally:
            connection.close()
        return server.said


@pytest.mark.parametrize("warnings", [[TRUNCATED], [DEPRECATED], [DEPRECATED, TRUNCATED]])
def test_error_value_is_written_though_the_server_warns_of_it_or_of_our_sql(warnings: Rows) -> None:
    said = _write(warnings)
    assert any("VALUES(`e`)" in sql for sql in said)
    assert said[-1].upper() == "COMMIT"


def test_row_with_an_error_value_of_which_something_else_does_not_fit_is_refused() -> None:
    with pytest.raises(RowRefusedError) as caught:
        _write([DEPRECATED, TOO_LONG])
    assert caught.value.fields["errno"] == 1406
