"""Hosts that may learn who the machine is: a cloud's own, by HTTPS.

Who may create changefeeds names the endpoint of a storage, and need not be who runs the machine. A token of the
machine's account would be theirs if it went there. So a host that is no cloud's gets what the URI itself brings, or
nothing: docs/decisions/2026-11-30-endpoints-and-who-asks.md
"""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from schemas.addresses import is_loopback

_DOMAINS: Final = {
    "gs": ("googleapis.com",),
    "az": (
        "blob.core.windows.net",
        "blob.core.chinacloudapi.cn",
        "blob.core.usgovcloudapi.net",
        "blob.storage.azure.net",  # accounts in DNS zones: `account.z01.blob.storage.azure.net`
    ),
}
_HTTPS: Final = {
    # Of letters, digits and hyphens alone: libraries do not agree where a host ends that holds anything else.
    protocol: re.compile(
        rf"https://(?:[a-z0-9-]+\.)+(?:{'|'.join(map(re.escape, domains))})(?::[0-9]+)?(?:/[!-\[\]-~]*)?",
        re.ASCII | re.IGNORECASE,
    )
    for protocol, domains in _DOMAINS.items()
}


def is_of_cloud(protocol: str, url: str) -> bool:
    """Tell whether a URL is of the cloud itself, and by HTTPS.

    Args:
        protocol: gs or az.
        url: the whole one.

    >>> is_of_cloud("gs", "https://storage.googleapis.com/x"), is_of_cloud("gs", "https://h.example/.googleapis.com")
    (True, False)
    """
    return _HTTPS[protocol].fullmatch(url) is not None


def check_who_asks(protocol: str, options: Mapping[str, object]) -> None:
    """Check that nobody's credentials but the URI's own would go to the URI's endpoint.

    Raises:
        ValueError: they would; the text shows no value of a parameter.
    """
    endpoint = options.get("endpoint")
    if protocol not in _DOMAINS or endpoint is None or is_of_cloud(protocol, str(endpoint)):
        return
    is_here = is_loopback(urlsplit(str(endpoint)).hostname or "")
    if protocol == "gs":
        _check_google(is_here, "credentials_file" in options)
    elif not is_here and not options.keys() & {"account_key", "sas_token"}:
        domains = ", ".join(f"*.{domain}" for domain in _DOMAINS["az"])
        raise ValueError(
            "has an endpoint that is not Azure's own, and neither account-key nor sas-token for it: credentials of this"
            f" machine go by https to {domains} alone, and to loopback go none"
        )


def _check_google(is_here: bool, has_file: bool) -> None:
    if not is_here:
        raise ValueError(
            "has an endpoint that is not Google's own: tokens, also those of a credentials-file, go by https to "
            "*.googleapis.com alone; allowed beside is a server on loopback, which is asked without any"
        )
    if has_file:  # the URI brings a path, what stands there is the machine's
        raise ValueError(
            "has credentials-file beside an endpoint on loopback, which is asked without credentials: tokens go by"
            " https to *.googleapis.com alone"
        )
