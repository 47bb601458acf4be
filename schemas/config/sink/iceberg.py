"""``[sink.iceberg-config]`` and the parameters of an Iceberg sink URI, ``iceberg://?warehouse=file:///…``.

Names are those of TiCDC's open branch (pingcap/ticdc pull request 4100) where it has them; ``tags-kept`` and
``type-change`` are ours.
"""

from dataclasses import dataclass
from typing import Literal

from schemas.config.parse.duration import Seconds
from schemas.config.parse.secret import Secret
from schemas.config.parse.section import Check, at_least, between, setting, shortest_duration
from schemas.config.sink.lake_layout import partitioning_reason, sort_order_reason

ICEBERG_SCHEMES = ("iceberg",)
LakeMode = Literal["append", "upsert"]


def _never_or_longer(text: str) -> Check:
    shortest = shortest_duration(text)
    return lambda value: None if value == 0 else shortest(value)


@dataclass(frozen=True, kw_only=True)
class IcebergConfig:
    """Where lake tables stand, and how they are written."""

    mode: LakeMode = "append"
    """``append``: every change is a row. ``upsert``: a row of TiDB is a row."""
    commit_interval_s: Seconds = setting(Seconds(60), key="commit-interval", check=shortest_duration("1s"))
    catalog: Literal["hadoop", "glue", "rest", "jdbc"] = "hadoop"
    catalog_uri: str = ""
    """Of ``jdbc``: ``jdbc:…``, a database; of ``rest``: ``http://…`` or ``https://…``."""
    catalog_user: str = ""
    catalog_password: Secret | None = None
    """Of ``jdbc``: the database's; of ``rest``: the secret of an OAuth2 client that ``catalog-user`` names."""
    catalog_oauth2_server_uri: str = ""
    """Of ``rest``: who gives that client a token, ``http://…`` or ``https://…``; empty: the catalog itself."""
    catalog_scope: str = ""
    """Of ``rest``: what that client asks a token for; empty: Iceberg's, ``catalog``."""
    catalog_token: Secret | None = None
    """Of ``rest``: a token of somebody else's, instead of a client."""
    warehouse: str = ""
    """``file:///path`` or ``s3://bucket/prefix``; must be given. Of ``rest``: what its server calls it, or nothing."""
    s3_endpoint: str = ""
    """Of tables on S3: ``http://…`` or ``https://…``, of a server that is not AWS's. Buckets stand in its paths."""
    s3_region: str = ""
    s3_access_key: Secret | None = None
    """Without it keys are looked for as AWS's own tools do."""
    s3_secret_access_key: Secret | None = None
    namespace: str = ""
    """Stands before the schema's name: ``namespace.schema.table``. Empty: ``schema.table``."""
    tags_kept: int = setting(100, check=at_least(1))
    """Tags ``wm_TS`` that a table keeps; older ones go, with the snapshots that only they held once these expire."""
    partitioning: str = setting("", check=partitioning_reason)
    """Of tables that are created from now on: terms whose column a table has not are left out of its partitions."""
    sort_order: str = setting("", check=sort_order_reason)
    """Of rows within a data file, likewise."""
    target_file_size_bytes: int = setting(512 << 20, key="target-file-size", check=between(1 << 20, 1 << 40))
    """Of data files, in tables that are created from now on: a file that has reached it is followed by another one."""
    emit_metadata_columns: bool = True
    """Of mode append, in tables that are created from now on: whether rows say by which change they came, and when."""
    compaction_interval_s: Seconds = setting(Seconds(3600), key="compaction-interval", check=_never_or_longer("1s"))
    """Pause between two compactions, each with an expiry of snapshots; 0: never."""
    type_change: Literal["stop", "new-column"] = "stop"
    """Where Iceberg cannot make a column's new type of its field. ``new-column``: the field stays with what it holds,
    and says in its name until when; a new one takes the column's name."""


ICEBERG_PATH = ("sink", "iceberg-config")
ICEBERG_URI_PARAMS: dict[str, tuple[str, ...]] = {
    name: (*ICEBERG_PATH, name)
    for name in (
        *("mode", "commit-interval", "catalog", "warehouse", "namespace", "tags-kept", "compaction-interval"),
        *("partitioning", "sort-order", "catalog-uri", "catalog-user", "catalog-password", "type-change"),
        *("catalog-oauth2-server-uri", "catalog-scope", "catalog-token"),
        *("s3-endpoint", "s3-region", "s3-access-key", "s3-secret-access-key"),
        *("target-file-size", "emit-metadata-columns"),
    )
}
"""Parameters of an Iceberg sink URI and the setting that each one overrides."""
ICEBERG_LATER_PARAMS = {
    "auto-tune-file-size": "a size of data files that changes by itself; target-file-size and compactions see to it",
    "enable-checkpoint-table": "tables of checkpoints; tags and snapshot summaries say how far a table is",
    "enable-global-checkpoint-table": "tables of checkpoints; tags and snapshot summaries say how far a table is",
    "allow-takeover": "lake tables of another changefeed",
    "schema-mode": "another choice of what a ddl may do",
}
"""TiCDC's further parameters, which nobody may pass over; ``config.not_supported_yet``."""
