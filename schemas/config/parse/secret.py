"""Values that must not be seen: in no repr, no log, no error."""

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from schemas.masking import MASK, mask_uri


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


def is_url(text: str) -> bool:
    """Tell whether the text is an http or https URL with a host."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
