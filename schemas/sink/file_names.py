"""Names of schemas and tables as parts of paths in a storage sink: no name leaves the root, no two names are one.

An ordinary name stays as it is, so that the layout is TiCDC's. What could mean something else in a path is written as
``%`` and two capital hexadecimal digits for each of its bytes: ``/``, ``\\``, ``%``, ``?``, ``#``, control characters,
bytes that are no UTF-8, and a dot in front. A schema ``metadata`` would stand where the checkpoint does: its first
letter is written so. A name that would be longer than file systems take is cut, and ends with ``%~`` and a digest.

>>> path_name("orders"), path_name("../x"), path_name("a/b"), path_name("50%")
('orders', '%2E.%2Fx', 'a%2Fb', '50%25')
"""

import hashlib
import re

_BYTES_MAX = 200
"""Of a part of a path; file systems take 255, and drafts of files have some more in front."""
_KEPT_BYTES = 160
_DIGEST_DIGITS = 32
_UNSAFE = re.compile("[\x00-\x1f\x7f/\\\\%?#\ud800-\udfff]|^\\.")
_PART = r"(?!\.)(?:[^\x00-\x1f\x7f/\\%?#\ud800-\udfff]|%[0-9A-F]{2}|%~|%(?=/))+"
_SCHEMA_FILE = re.compile(rf"(?!metadata/)(?:{_PART}/){{1,2}}meta/schema_[0-9]{{1,20}}_[0-9]{{1,20}}\.json")
_RESERVED_SCHEMAS = {"metadata": "%6Detadata"}


def path_name(name: str) -> str:
    """Return a table's name as one part of a path."""
    safe = _UNSAFE.sub(_escaped, name) or "%"
    if len(safe.encode()) <= _BYTES_MAX:
        return safe
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_DIGITS]
    return f"{safe.encode()[:_KEPT_BYTES].decode('utf-8', 'ignore').rsplit('%', 1)[0]}%~{digest}"


def schema_path_name(name: str) -> str:
    """Return a schema's name as the first part of a path."""
    return _RESERVED_SCHEMAS.get(name) or path_name(name)


def is_schema_file_path(path: str) -> bool:
    """Tell whether a path is one of a schema file, and so below the sink's root."""
    return len(path) <= 3 * _BYTES_MAX and _SCHEMA_FILE.fullmatch(path) is not None


def _escaped(match: re.Match[str]) -> str:
    try:
        raw = match.group().encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raw = match.group().encode("utf-8", "surrogatepass")
    return "".join(f"%{byte:02X}" for byte in raw)
