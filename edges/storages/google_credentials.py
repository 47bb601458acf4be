"""Who asks Google: what a file of a sink URI says, or what the machine is."""

import json
from pathlib import Path
from typing import Any, Final

import google.auth
from google.oauth2 import service_account
from google.oauth2.credentials import Credentials as UserCredentials

READ_WRITE: Final = "https://www.googleapis.com/auth/devstorage.read_write"
FULL_CONTROL: Final = "https://www.googleapis.com/auth/devstorage.full_control"
"""What who gives an object a list of access wants: docs.cloud.google.com/storage/docs/oauth-scopes."""


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
        said = json.loads(Path(file).read_bytes())
        if said["type"] == "service_account":
            return service_account.Credentials.from_service_account_info(said, scopes=[scope])
        if said["type"] == "authorized_user":
            return UserCredentials.from_authorized_user_info(said, scopes=[scope])
        return google.auth.load_credentials_from_dict(said, scopes=[scope])[0]
    except (ValueError, KeyError, TypeError, google.auth.exceptions.GoogleAuthError) as error:
        raise ValueError(f"credentials-file {file} holds no credentials: {type(error).__name__}") from None
