"""Values that must not be seen: in no repr, no log, no error."""

from dataclasses import dataclass, field
from urllib.parse import urlsplit

MASK = "***"


@dataclass(frozen=True, slots=True)
class Secret:
    """A password or token. Formatting it in any way gives stars; :meth:`reveal` gives the value."""

    value: str = field(repr=False)

    def reveal(self) -> str:
        """Return the value, to hand it to a client library."""
        return self.value

    def __str__(self) -> str:
        return MASK

    def __repr__(self) -> str:
        return f"Secret({MASK})"

    def __format__(self, spec: str) -> str:
        return format(MASK, spec)


@dataclass(frozen=True, slots=True)
class SecretUrl(Secret):
    """A URL whose user info, if it has any, must not be seen. Formatting shows the rest."""

    def __str__(self) -> str:
        return mask_uri(self.value)

    def __repr__(self) -> str:
        return f"SecretUrl({mask_uri(self.value)!r})"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


_SECRET_WORDS = ("password", "secret", "token", "access-key", "account-key")


def mask_uri(uri: str) -> str:
    """Return a URI for people: user info and the values of secret parameters are stars. Never fails.

    >>> mask_uri("kafka://u:p@h:9092/t?sasl-user=u&sasl-password=p#x")
    'kafka://***@h:9092/t?sasl-user=u&sasl-password=***'
    """
    head, _, query = uri.partition("?")
    scheme, separator, rest = head.partition("://")
    if separator:
        # The last "@" of what stands before the path; a password may hold an unescaped one, and even a "/".
        user_info, at, after = rest.rpartition("@")
        head = f"{scheme}://{MASK}@{after}" if at and user_info is not None else head
    if not query:
        return head
    return head + "?" + "&".join(_mask_param(part) for part in query.partition("#")[0].split("&"))


def _mask_param(param: str) -> str:
    name, equals, _ = param.partition("=")
    return f"{name}={MASK}" if equals and any(word in name.lower() for word in _SECRET_WORDS) else param


def is_url(text: str) -> bool:
    """Tell whether the text is an http or https URL with a host."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
