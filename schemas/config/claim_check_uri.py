"""``claim-check-storage-uri``: the storages of TiCDC that large messages can go to, here and there."""

from urllib.parse import unquote, urlsplit

_LOCAL = ("file", "local")
OTHER_STORAGES = ("s3", "ks3", "gcs", "gs", "azure", "azblob", "hdfs", "noop")
"""Schemes that TiCDC takes and we do not yet."""


def claim_folder(uri: str) -> str:
    """Return the absolute path of a local storage's folder.

    Raises:
        ValueError: it is none.
    """
    parts = urlsplit(uri)
    if parts.scheme.lower() not in _LOCAL:
        raise ValueError("must be file:///path")
    if parts.netloc or not parts.path.startswith("/") or parts.query or parts.fragment:
        raise ValueError("must be file:///path, an absolute path and nothing else")
    return unquote(parts.path)


def other_storage(uri: str) -> str | None:
    """Return the scheme of a storage that TiCDC takes and we do not yet."""
    scheme = uri.partition(":")[0].lower()
    return scheme if scheme in OTHER_STORAGES else None
