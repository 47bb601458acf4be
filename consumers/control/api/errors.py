"""Errors as the API answers them: an HTTP status and ``{"error_msg", "error_code"}`` with TiCDC's codes.

Ours stand in the text, in brackets as everywhere, so that one grep finds an error in logs, nodes and answers.
"""

from http import HTTPStatus

from consumers.control.api.access.errors import ApiError
from consumers.control.api.codes import CDC_CODES, INTERNAL, INVALID, KEY_CODES, OWN_STATUSES, STATUSES
from schemas.errors import Action, BusError


class ApiAddressError(BusError):
    """The API's address cannot be listened on."""

    code, action = "api.address", Action.STOP_CHANGEFEED


class NoSuchRouteError(ApiError):
    """There is no such path, or not with this method."""

    code = "api.no_such_route"


class BusyError(ApiError):
    """As much of this is under way already as may be at once."""

    code, action = "api.busy", Action.RETRY


class NotReadyError(ApiError):
    """This capture has no session with ZooKeeper at the moment, or what is asked for has just begun."""

    code, action = "api.not_ready", Action.RETRY


class NoOwnerError(ApiError):
    """No owner has been elected, or it has changed in between."""

    code, action = "api.no_owner", Action.RETRY


class ForwardError(ApiError):
    """The owner, whom a request was for, could not be asked."""

    code, action = "api.forward_failed", Action.RETRY


class NoSuchCaptureError(ApiError):
    """No capture of this id is registered."""

    code = "api.no_such_capture"


class SchedulerRefusedError(ApiError):
    """The owner cannot do this to the table or the capture now."""

    code = "api.scheduler_refused"


def cdc_code(error: BusError) -> str:
    """Return TiCDC's code of an error."""
    if error.code in ("bus.config", "config.not_supported_yet"):
        key = str(error.fields.get("key", ""))
        # A parameter of the URI is named by itself; only settings of the file have a section.
        return KEY_CODES.get(key.split(".")[0], INVALID)
    return CDC_CODES.get(error.code, INTERNAL)


def status_of(error: BusError) -> HTTPStatus:
    """Return the HTTP status of an error."""
    return OWN_STATUSES.get(error.code) or STATUSES.get(cdc_code(error), HTTPStatus.INTERNAL_SERVER_ERROR)


def error_body(error: BusError) -> dict[str, str]:
    """Return the body of an answer that is an error."""
    code = cdc_code(error)
    return {"error_msg": f"[{code}] {error}", "error_code": code}
