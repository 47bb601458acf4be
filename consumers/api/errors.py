"""Errors as the API answers them: an HTTP status and ``{"error_msg", "error_code"}`` with TiCDC's codes.

Ours stand in the text, in brackets as everywhere, so that one grep finds an error in logs, nodes and answers.
"""

from http import HTTPStatus
from typing import ClassVar, Final

from schemas.errors import Action, BusError


class ApiError(BusError):
    """A request that the API itself refuses."""

    code, action = "api.invalid", Action.STOP_CHANGEFEED
    cdc_code: ClassVar[str] = "CDC:ErrAPIInvalidParam"
    status: ClassVar[HTTPStatus] = HTTPStatus.BAD_REQUEST


class NoSuchRouteError(ApiError):
    """There is no such path, or not with this method."""

    code, cdc_code, status = "api.no_such_route", "CDC:ErrAPINotFound", HTTPStatus.NOT_FOUND


class NotReadyError(ApiError):
    """This capture has no session with ZooKeeper at the moment, or no owner has been elected."""

    code, action = "api.not_ready", Action.RETRY
    cdc_code, status = "CDC:ErrServerIsNotReady", HTTPStatus.SERVICE_UNAVAILABLE


class NoSuchCaptureError(ApiError):
    """No capture of this id is registered."""

    code, cdc_code = "api.no_such_capture", "CDC:ErrCaptureNotExist"


CDC_CODES: Final = {
    "changefeed.not_found": "CDC:ErrChangeFeedNotExists",
    "changefeed.exists": "CDC:ErrChangeFeedAlreadyExists",
    "changefeed.start_ts": "CDC:ErrStartTsBeforeGC",
    "changefeed.update_refused": "CDC:ErrChangefeedUpdateRefused",
    "changefeed.no_frontier": "CDC:ErrServerIsNotReady",
    "sorter.dispatch_failed": "CDC:ErrDispatcherFailed",
    "sorter.column_selector_failed": "CDC:ErrColumnSelectorFailed",
    "sorter.expression_column_not_found": "CDC:ErrExpressionColumnNotFound",
    "sorter.expression_misfit": "CDC:ErrExpressionParseFailed",
    "config.expression_parse_failed": "CDC:ErrExpressionParseFailed",
    "producer.pd_unreachable": "CDC:ErrPDEtcdAPIError",
}
KEY_CODES: Final = {
    "sink-uri": "CDC:ErrSinkURIInvalid",
    "target-ts": "CDC:ErrTargetTsBeforeStartTs",
    "filter": "CDC:ErrFilterRuleInvalid",
}
"""Of a setting that is not allowed, by the first word of its key."""
BAD_REQUEST_CODES: Final = frozenset(
    {
        "CDC:ErrAPIInvalidParam",
        "CDC:ErrSinkURIInvalid",
        "CDC:ErrStartTsBeforeGC",
        "CDC:ErrChangeFeedNotExists",
        "CDC:ErrTargetTsBeforeStartTs",
        "CDC:ErrTableIneligible",
        "CDC:ErrFilterRuleInvalid",
        "CDC:ErrChangefeedUpdateRefused",
        "CDC:ErrMySQLConnectionError",
        "CDC:ErrMySQLInvalidConfig",
        "CDC:ErrCaptureNotExist",
        "CDC:ErrSchedulerRequestFailed",
    }
)
NOT_READY_CODES: Final = frozenset({"CDC:ErrServerIsNotReady"})


def cdc_code(error: BusError) -> str:
    """Return TiCDC's code of an error; of one that TiCDC does not have, its family's."""
    if isinstance(error, ApiError):
        return error.cdc_code
    if error.code in CDC_CODES:
        return CDC_CODES[error.code]
    if error.code in ("bus.config", "config.not_supported_yet"):
        key = str(error.fields.get("key", ""))
        # A parameter of the URI is named by itself; only settings of the file have a section.
        return KEY_CODES.get(key.split(".")[0], "CDC:ErrAPIInvalidParam")
    return "CDC:ErrInternalServerError"


def status_of(error: BusError) -> HTTPStatus:
    """Return the HTTP status of an error."""
    if isinstance(error, ApiError):
        return error.status
    code = cdc_code(error)
    if code in NOT_READY_CODES:
        return HTTPStatus.SERVICE_UNAVAILABLE
    return HTTPStatus.BAD_REQUEST if code in BAD_REQUEST_CODES else HTTPStatus.INTERNAL_SERVER_ERROR


def error_body(error: BusError) -> dict[str, str]:
    """Return the body of an answer that is an error."""
    code = cdc_code(error)
    return {"error_msg": f"[{code}] {error}", "error_code": code}
