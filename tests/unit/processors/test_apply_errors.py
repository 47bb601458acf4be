"""Who can help with an error of the destination."""

import ssl

import pymysql
import pytest

from consumers.processors.apply.errors import (
    DestinationRefusedError,
    DestinationUnreachableError,
    errno,
    general_error,
    is_refusal,
    may_heal,
)
from schemas.errors import Action


@pytest.mark.parametrize(
    "number", [1205, 1213, 2003, 2006, 2013, 1040, 1053, 1927, 1021, 1114, 1290, 9007], ids=lambda number: str(number)
)
def test_error_that_passes_by_itself_is_tried_again(number: int) -> None:
    error = general_error(pymysql.OperationalError(number, "text"), partition=3)
    assert isinstance(error, DestinationUnreachableError)
    assert error.action is Action.RETRY
    assert (error.fields["partition"], error.fields["reason"]) == (3, f"{number}, text")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1296, "Got error 59 'Temp file write failure' from InnoDB"),
        (1005, 'Can\'t create table `d`.`n` (errno: 135 "No more room in record file")'),
        (1005, 'Can\'t create table `d`.`n` (errno: 28 "No space left on device")'),
        (1030, 'Got error 28 "No space left on device" from storage engine InnoDB'),
    ],
)
def test_full_disk_that_a_ddl_meets_is_tried_again(number: int, text: str) -> None:
    assert may_heal(pymysql.OperationalError(number, text))
    assert not may_heal(pymysql.OperationalError(number, "Can't create table `d`.`n` (errno: 150)"))


@pytest.mark.parametrize("number", [1044, 1045, 1142, 1227])
def test_error_of_a_missing_privilege_is_for_an_operator(number: int) -> None:
    error = pymysql.OperationalError(number, "denied")
    assert is_refusal(error)
    assert not may_heal(error)
    assert isinstance(general_error(error), DestinationRefusedError)


@pytest.mark.parametrize("number", [1062, 1264, 1146, 1054, 1406])
def test_error_of_a_row_is_neither(number: int) -> None:
    error = pymysql.DataError(number, "row")
    assert not may_heal(error)
    assert not is_refusal(error)


def test_error_of_tls_is_for_an_operator_though_its_number_is_that_of_a_server_that_is_gone() -> None:
    error = pymysql.OperationalError(2003, "Can't connect")
    error.original_exception = ssl.SSLCertVerificationError("certificate verify failed")  # type: ignore[attr-defined]
    assert isinstance(general_error(error), DestinationRefusedError)
    assert "TLS" in str(general_error(error))


def test_error_of_a_connection_that_was_closed_has_no_number_and_is_tried_again() -> None:
    error = pymysql.err.InterfaceError("")
    assert errno(error) == 0
    assert may_heal(error)
