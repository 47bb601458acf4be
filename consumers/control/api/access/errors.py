"""Requests that the API's door refuses, and files of TLS that it cannot be locked with."""

from schemas.errors import Action, BusError


class ApiError(BusError):
    """A request that the API itself refuses."""

    code, action = "api.invalid", Action.STOP_CHANGEFEED
    is_of_settings = True


class ApiTlsError(BusError):
    """A certificate, key or CA for the API cannot be used."""

    code, action = "api.tls_file", Action.STOP_CHANGEFEED


class UnauthorizedError(ApiError):
    """The request names no user that may ask, or a wrong password."""

    code = "api.unauthorized"


class LoginDelayError(ApiError):
    """Too many logins have failed: the next one must wait."""

    code, action = "api.login_delayed", Action.RETRY


class WrongHostError(ApiError):
    """The request names a host that is not this server: perhaps another's name was made to resolve to us."""

    code = "api.wrong_host"


class WrongOriginError(ApiError):
    """A web page of another server has made a browser ask."""

    code = "api.wrong_origin"


class ContentTypeError(ApiError):
    """The body is called something else than JSON."""

    code = "api.content_type"
