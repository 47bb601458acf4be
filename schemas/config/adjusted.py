"""What TiCDC takes for unset, and ranges that it clamps to, before a changefeed's settings are read.

Sources: ``ValidateAndAdjust`` of tiflow's and ticdc's ``pkg/config`` and the sinks' own ``config.go``.
"""

from collections.abc import Mapping

from schemas.config.parse.digits import whole_number
from schemas.config.parse.duration import parse_duration

_KAFKA, _MYSQL, _FILES = "sink.kafka-config", "sink.mysql-config", "sink.cloud-storage-config"
_LARGE = f"{_KAFKA}.large-message-handle"
UNSET: Mapping[str, tuple[object, ...]] = {
    "memory-quota": (0, ""),
    "performance-mode": ("",),
    "sink.schema-registry": ("",),
    "sink.protocol": ("",),
    "sink.transaction-atomicity": ("",),
    "sink.date-separator": ("",),
    "sink.advance-timeout-in-sec": (0,),
    "consistent.storage": ("",),
    "consistent.compression": ("none",),
    **dict.fromkeys(
        [
            f"consistent.{name}"
            for name in (
                *("max-log-size", "flush-interval", "meta-flush-interval"),
                *("encoding-worker-num", "flush-worker-num", "flush-concurrency"),
            )
        ],
        (0,),
    ),
    **dict.fromkeys(
        [
            f"{_KAFKA}.{name}"
            for name in (
                *("kafka-version", "compression", "kafka-client-id", "ca", "cert", "key"),
                *("dial-timeout", "write-timeout", "read-timeout"),
                *("sasl-user", "sasl-password", "sasl-mechanism", "sasl-gssapi-auth-type"),
                *("sasl-gssapi-keytab-path", "sasl-gssapi-kerberos-config-path", "sasl-gssapi-service-name"),
                *("sasl-gssapi-user", "sasl-gssapi-password", "sasl-gssapi-realm", "sasl-oauth-client-id"),
                *("sasl-oauth-client-secret", "sasl-oauth-token-url", "sasl-oauth-grant-type", "sasl-oauth-audience"),
                *("codec-config.encoding-format", "codec-config.avro-decimal-handling-mode"),
                "codec-config.avro-bigint-unsigned-handling-mode",
            )
        ],
        ("",),
    ),
    f"{_LARGE}.large-message-handle-option": ("",),
    f"{_LARGE}.large-message-handle-compression": ("",),
    f"{_LARGE}.claim-check-storage-uri": ("",),
    **dict.fromkeys([f"{_MYSQL}.{name}" for name in ("ssl-ca", "ssl-cert", "ssl-key", "tidb-txn-mode")], ("",)),
    **dict.fromkeys([f"{_MYSQL}.{name}" for name in ("write-timeout", "read-timeout", "timeout")], ("",)),
    f"{_MYSQL}.async-ddl-timeout": ("",),
    f"{_FILES}.flush-interval": ("",),
    f"{_FILES}.file-cleanup-cron-spec": ("",),
}
"""Keys and the values that are as good as none: the default holds."""
CLAMPED: Mapping[str, tuple[int | None, int | None]] = {
    "sink.send-bootstrap-interval-in-sec": (0, None),
    "sink.send-bootstrap-in-msg-count": (0, None),
    f"{_MYSQL}.worker-count": (None, 1024),
    f"{_MYSQL}.max-txn-row": (None, 2048),
    f"{_MYSQL}.max-multi-update-row": (None, 256),
    f"{_MYSQL}.max-multi-update-row-size": (None, 8192),
    f"{_FILES}.worker-count": (None, 512),
    f"{_FILES}.file-size": (1 << 20, 512 << 20),
}
"""Keys of whole numbers and the ends of their ranges: what is beyond is the end itself."""
CLAMPED_DURATIONS: Mapping[str, tuple[str, str]] = {f"{_FILES}.flush-interval": ("2s", "10m")}
DEFAULT_OUTSIDE: Mapping[str, tuple[int, int]] = {"sink.file-index-digit": (6, 20)}
"""Keys of whole numbers whose default holds where they are outside of a range."""

ALIASES: Mapping[str, Mapping[str, str]] = {"sink.protocol": {"flat-avro": "avro"}}
"""Words that are another one's older name, in any case."""
COPIES: frozenset[str] = frozenset({"sink.case-sensitive", "sink.force-replicate", "sink.integrity"})
"""What TiCDC's newer architecture copies from the top of the file into ``[sink]``, and so may show in a file."""


def adjusted(table: Mapping[str, object], prefix: str = "") -> tuple[dict[str, object], tuple[str, ...]]:
    """Return the table as TiCDC would read it, and a note for each value that was changed, not for unset ones."""
    out: dict[str, object] = {}
    notes: list[str] = []
    for key, value in table.items():
        path = f"{prefix}{key}"
        if path in COPIES:
            notes.append(f"{path} has no effect: it is TiCDC's own copy of `{key}`, which counts")
            continue
        if isinstance(value, Mapping):
            out[key], inner = adjusted(value, f"{path}.")
            notes += inner
            continue
        if isinstance(value, str):
            value = ALIASES.get(path, {}).get(value.lower(), value)
        if value in UNSET.get(path, ()) and not isinstance(value, bool):
            continue
        number = _number(value)
        if path in DEFAULT_OUTSIDE and number is not None:
            low, high = DEFAULT_OUTSIDE[path]
            if not low <= number <= high:
                if number:
                    notes.append(f"{path} is not from {low} to {high}: its default is taken, as TiCDC does")
                continue
        end = _clamped(path, value, number)
        if end is not None:
            notes.append(f"{path} is taken as {end}, as TiCDC does: {value} is out of range")
        out[key] = value if end is None else end
    return out, tuple(notes)


def _clamped(path: str, value: object, number: int | None) -> int | str | None:
    """Return the end of its range that a value is beyond, None if it is within."""
    if path in CLAMPED and number is not None:
        low, high = CLAMPED[path]
        return low if low is not None and number < low else high if high is not None and number > high else None
    if path in CLAMPED_DURATIONS and isinstance(value, str):
        least, most = CLAMPED_DURATIONS[path]
        try:
            seconds = parse_duration(value)
        except ValueError:
            return None
        return least if seconds < parse_duration(least) else most if seconds > parse_duration(most) else None
    return None


def _number(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        return whole_number(value)
    return value if isinstance(value, int) else None
