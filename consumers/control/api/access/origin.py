"""Which requests a server takes before it asks who is there: those of programs, and those of its own pages.

A web page that is open in a browser on the operator's machine can send requests to an API on loopback. Three things
tell them apart, and each stands against another trick:

* **Host**: a page whose own name was made to resolve to us (DNS rebinding) is of our origin for the browser, but its
  requests name its host. IP addresses are no such names.
* **Origin** and **Sec-Fetch-Site**: browsers say which page asks, and pages cannot say another one.
* **Content-Type**: a page of another origin may send a form or plain text without asking first, JSON not. Programs such
  as ``curl -d`` call their JSON a form, so a form, or no type at all, is taken from who is no browser.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from consumers.control.api.access.errors import ContentTypeError, WrongHostError, WrongOriginError
from schemas.addresses import is_ip_address

_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_JSON: Final = "application/json"
_FORM: Final = "application/x-www-form-urlencoded"


@dataclass(frozen=True, slots=True)
class Hosts:
    """Names under which a server is asked; IP addresses and localhost always count."""

    names: frozenset[str] = frozenset()

    def allow(self, host: str) -> bool:
        """Say whether a Host header is one of ours; ``*.`` in a name stands for one label."""
        name = _name(host)
        return (
            not name  # HTTP/1.0 without it, as probes speak; a browser always sends it
            or name == "localhost"
            or is_ip_address(name)
            or name in self.names
            or f"*.{name.partition('.')[2]}" in self.names
        )


def hosts_of(addresses: Collection[str]) -> Hosts:
    """Return the hosts of ``host`` or ``host:port`` texts."""
    return Hosts(frozenset(filter(None, map(_name, addresses))))


def check_request(method: str, scheme: str, headers: Mapping[str, str], hosts: Hosts) -> None:
    """Check where a request comes from; names of ``headers`` are in lower case.

    Raises:
        WrongHostError: it is for another server.
        WrongOriginError: a page of another server sends it.
        ContentTypeError: its body is neither JSON nor, from a program, a form.
    """
    host = headers.get("host", "")
    if not hosts.allow(host):
        raise WrongHostError("the request is for another host; give the server --api-host", host=host[:100])
    origin = headers.get("origin")
    if origin is not None and origin.lower() != f"{scheme}://{host}".lower():
        raise WrongOriginError("a page of another server may not ask this one", origin=origin[:100])
    site, mode = headers.get("sec-fetch-site", "none"), headers.get("sec-fetch-mode", "")
    if site not in ("none", "same-origin") and not (method == "GET" and mode == "navigate"):
        raise WrongOriginError("a page of another server may not ask this one", site=site[:100])
    if method in _READS:
        return
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    is_browser = (
        origin is not None or "sec-fetch-site" in headers or headers.get("user-agent", "").startswith("Mozilla")
    )
    if kind != _JSON and (kind not in ("", _FORM) or is_browser):
        raise ContentTypeError("a body is JSON", content_type=kind[:100], allowed=_JSON)


def _name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return host
