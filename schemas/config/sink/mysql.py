"""``[sink.mysql-config]`` and the parameters of a ``mysql://`` or ``tidb://`` sink URI: TiCDC's keys and defaults.

``allow-public-key-retrieval`` alone is not TiCDC's: the word is MySQL Connector/J's.
"""

from dataclasses import dataclass
from typing import Literal

from schemas.config.parse.duration import Seconds
from schemas.config.parse.section import between, setting


@dataclass(frozen=True, kw_only=True)
class MysqlConfig:
    """How a MySQL or TiDB is written to."""

    worker_count: int = setting(16, check=between(1, 1024))
    """Connections that write at once in a process; a table's rows go through one."""
    max_txn_row: int = setting(2048, check=between(1, 2048))
    """Rows of a transaction there that upstream's smaller ones are put into; one that is larger stays whole. TiCDC's
    default is 256: docs/decisions/2026-11-22-one-transaction-a-partition.md."""
    max_multi_update_row: int = setting(40, check=between(1, 256))
    max_multi_update_row_size: int = setting(1024, check=between(0, 8192))
    tidb_txn_mode: Literal["optimistic", "pessimistic"] = "optimistic"
    """``tidb_txn_mode`` of sessions, where the destination is a TiDB."""
    ssl_ca: str | None = None
    ssl_cert: str | None = None
    ssl_key: str | None = None
    allow_public_key_retrieval: bool = False
    """``caching_sha2_password`` and ``sha256_password`` may tell the password to a server that TLS does not prove."""
    time_zone: str | None = None
    """Of sessions that run DDL, for defaults of TIMESTAMP columns; rows are written in UTC. None: the changefeed's;
    empty: the server's."""
    write_timeout_s: Seconds = setting(Seconds(120), key="write-timeout")
    read_timeout_s: Seconds = setting(Seconds(120), key="read-timeout")
    timeout_s: Seconds = setting(Seconds(10), key="timeout")
    """For a connection to open."""
    async_ddl_timeout_s: Seconds = setting(Seconds(0), key="async-ddl-timeout")
    enable_batch_dml: bool = True
    """False: one row a statement."""
    enable_multi_statement: bool = True
    """A transaction's statements are sent together, which takes two round trips; false: one by one."""
    enable_cache_prepared_statement: bool = True


MYSQL_PATH = ("sink", "mysql-config")
MYSQL_URI_PARAMS: dict[str, tuple[str, ...]] = {
    "protocol": ("sink", "protocol"),
    "safe-mode": ("sink", "safe-mode"),
    "transaction-atomicity": ("sink", "transaction-atomicity"),
    "max-multi-update-row-count": (*MYSQL_PATH, "max-multi-update-row"),
    "batch-dml-enable": (*MYSQL_PATH, "enable-batch-dml"),
    "multi-stmt-enable": (*MYSQL_PATH, "enable-multi-statement"),
    "cache-prep-stmts": (*MYSQL_PATH, "enable-cache-prepared-statement"),
    **{
        name: (*MYSQL_PATH, name)
        for name in (
            "worker-count",
            "max-txn-row",
            "max-multi-update-row",
            "max-multi-update-row-size",
            "tidb-txn-mode",
            "ssl-ca",
            "ssl-cert",
            "ssl-key",
            "allow-public-key-retrieval",
            "time-zone",
            "write-timeout",
            "read-timeout",
            "timeout",
            "async-ddl-timeout",
        )
    },
}
"""Parameters of a database sink URI and the setting that each one overrides."""
