"""Sessions of HTTP as Azure's and Google's clients use them."""

import requests
from requests.adapters import HTTPAdapter

from edges.storages.objects import CONNECTIONS_KEPT


def prepare(session: requests.Session) -> None:
    """Let a session keep connections, and add nothing to what its client says of who asks."""
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_connections=4, pool_maxsize=CONNECTIONS_KEPT))
    # Without an own one requests takes what `.netrc` has for that host, or for any, in place of the client's.
    session.auth = _as_it_is


def _as_it_is(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request
