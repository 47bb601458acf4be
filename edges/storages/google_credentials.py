"""Who asks Google: what a file of a sink URI says, or what the machine is.

Who names the file need not be who runs the machine. A file of Google's may name others to read, programs to run and
servers to send what was found to. So of a URI's file only the two kinds are taken that hold their own secret, for
Google's own servers of tokens. ``GOOGLE_APPLICATION_CREDENTIALS`` is the operator's, and may be of any kind.
"""

import json
from pathlib import Path
from typing import Any, Final

import google.auth
from google.oauth2 import service_account
from google.oauth2.credentials import Credentials as UserCredentials

from schemas.config.sink.storage_hosts import is_of_cloud

READ_WRITE: Final = "https://www.googleapis.com/auth/devstorage.read_write"
FULL_CONTROL: Final = "https://www.googleapis.com/auth/devstorage.full_control"
"""What who gives an object a list of access wants: docs.cloud.google.com/storage/docs/oauth-scopes."""
_KINDS: Final = {
    "service_account": service_account.Credentials.from_service_account_info,
    "authorized_user": UserCredentials.from_authorized_user_info,
}
_UNIVERSE: Final = "googleapis.com"
_FORMER_TOKENS: Final = "https://accounts.google.com/o/oauth2/token"
"""Google's too, in files of service accounts of years ago."""
_BYTES_MAX: Final = 64 << 10


def credentials(file: str | None, scope: str) -> Any:
    """Return who asks, for one scope.

    Args:
        file: the URI's; None: what Google's library finds on this machine.

    Raises:
        ValueError: the file holds no credentials that may be used. The text shows nothing of it.
        OSError: it cannot be read.
        google.auth.exceptions.DefaultCredentialsError: nothing is found.
    """
    if file is None:
        return google.auth.default(scopes=[scope])[0]
    try:
        with Path(file).open("rb") as opened:
            said = json.loads(opened.read(_BYTES_MAX))
        kind = said["type"]
        _check(kind, said)
        return _KINDS[kind](said, scopes=[scope])
    except _ForbiddenError as error:
        raise ValueError(f"credentials-file {file} {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, google.auth.exceptions.GoogleAuthError) as error:
        raise ValueError(f"credentials-file {file} holds no credentials: {type(error).__name__}") from None


class _ForbiddenError(Exception):
    """A file would let the machine do what its operator alone may ask for."""


def _check(kind: object, said: dict[str, Any]) -> None:
    if kind not in _KINDS:
        raise _ForbiddenError(
            f"is of a kind that is not allowed: allowed are {' and '.join(_KINDS)}; others are taken from the variable "
            "GOOGLE_APPLICATION_CREDENTIALS of the machine"
        )
    tokens = said.get("token_uri")
    if tokens not in (None, _FORMER_TOKENS) and not is_of_cloud("gs", tokens):
        raise _ForbiddenError(f"has a token_uri that is not Google's own: allowed is https to *.{_UNIVERSE}")
    if said.get("universe_domain") not in (None, _UNIVERSE):
        raise _ForbiddenError(f"has a universe_domain other than {_UNIVERSE}")
