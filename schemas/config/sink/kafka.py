"""``[sink.kafka-config]``: TiCDC's keys and defaults for a Kafka sink. The sink URI's parameters override them."""

from dataclasses import dataclass
from typing import Literal

from schemas.config.parse.duration import Seconds
from schemas.config.parse.secret import Secret
from schemas.config.parse.section import at_least, between, section, setting

Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER"]
LargeMessageOption = Literal["none", "handle-key-only", "claim-check"]

MESSAGE_OVERHEAD_BYTES = 36
"""Counted per message beside key and value when it is held against ``max-message-bytes``."""
PARTITIONS_DEFAULT = 3
"""Partitions of a topic that we create when ``partition-num`` is unset."""


@dataclass(frozen=True, kw_only=True)
class CodecConfig:
    """``[sink.kafka-config.codec-config]``."""

    enable_tidb_extension: bool = False
    """canal-json, avro, debezium: add commit_ts and more; canal-json and debezium send watermarks only with it."""
    max_batch_size: int = setting(16, check=at_least(1))
    """Rows in one message, of protocols that batch (open-protocol)."""
    avro_enable_watermark: bool = False
    """Test aid of TiCDC: DDL and watermark records that no Avro reader understands. Needs the extension."""
    avro_decimal_handling_mode: Literal["precise", "string"] = "precise"
    avro_bigint_unsigned_handling_mode: Literal["long", "string"] = "long"
    """``long`` wraps values from 2^63 to negative numbers."""
    encoding_format: Literal["json", "avro"] = "json"
    """simple only."""
    avro_include_before_value: bool = False
    output_row_key: bool = False


@dataclass(frozen=True, kw_only=True)
class LargeMessageHandle:
    """``[sink.kafka-config.large-message-handle]``: what to do with a message beyond ``max-message-bytes``."""

    large_message_handle_option: LargeMessageOption = "none"
    large_message_handle_compression: Literal["none", "lz4", "snappy"] = "none"
    claim_check_storage_uri: Secret | None = None
    claim_check_raw_value: bool = False


@dataclass(frozen=True, kw_only=True)
class GlueSchemaRegistry:
    """``[sink.kafka-config.glue-schema-registry-config]``."""

    registry_name: str = setting()
    region: str = setting()
    access_key: Secret | None = None
    secret_access_key: Secret | None = None
    token: Secret | None = None


@dataclass(frozen=True, kw_only=True)
class KafkaConfig:
    """How to reach Kafka, and how topics and messages are made."""

    partition_num: int | None = setting(None, check=between(1, 2**31 - 1))
    """Partitions to use. None: the topic's real count, and 3 when we create it. Beyond the real count: an error."""
    replication_factor: int = setting(1, check=between(1, 2**15 - 1))
    """Of topics that we create."""
    kafka_version: str = "2.4.0"
    max_message_bytes: int = setting(10 * 1024 * 1024, check=between(1, 2**31 - 1))
    """Largest key + value + 36. Lowered to the topic's limit less 128 where that is smaller."""
    max_retry: int = setting(5, check=at_least(0))
    compression: Compression = "none"
    """By the Kafka producer, of whole batches."""
    kafka_client_id: str | None = None
    """None: ``TiCDC_producer_<capture address>_<namespace>_<changefeed id>``."""
    auto_create_topic: bool = True
    """False: a topic that is missing is an error."""
    dial_timeout_s: Seconds = setting(Seconds(10.0), key="dial-timeout", check=at_least(0.001))
    write_timeout_s: Seconds = setting(Seconds(10.0), key="write-timeout", check=at_least(0.001))
    read_timeout_s: Seconds = setting(Seconds(10.0), key="read-timeout", check=at_least(0.001))
    required_acks: Literal[-1, 0, 1] = -1
    """-1: all in-sync replicas, and ``min.insync.replicas`` must not exceed ``replication-factor``."""
    enable_tls: bool | None = None
    """None: on for ``kafka+ssl://`` and when a certificate is given."""
    ca: str | None = None
    """PEM file of the authorities to trust."""
    cert: str | None = None
    """PEM file of our certificate; needs ``ca`` and ``key``."""
    key: str | None = None
    """PEM file of our private key."""
    insecure_skip_verify: bool = False
    sasl_user: str | None = None
    sasl_password: Secret | None = None
    sasl_mechanism: SaslMechanism | None = None
    sasl_gssapi_auth_type: Literal["USER", "KEYTAB"] | None = None
    sasl_gssapi_keytab_path: str | None = None
    sasl_gssapi_kerberos_config_path: str | None = None
    sasl_gssapi_service_name: str | None = None
    sasl_gssapi_user: str | None = None
    sasl_gssapi_password: Secret | None = None
    sasl_gssapi_realm: str | None = None
    sasl_gssapi_disable_pafxfast: bool = False
    sasl_oauth_client_id: str | None = None
    sasl_oauth_client_secret: Secret | None = None
    """Base64."""
    sasl_oauth_token_url: str | None = None
    sasl_oauth_scopes: tuple[str, ...] = ()
    sasl_oauth_grant_type: str | None = None
    sasl_oauth_audience: str | None = None
    codec: CodecConfig = section(CodecConfig, key="codec-config")
    large_message_handle: LargeMessageHandle = section(LargeMessageHandle)
    glue_schema_registry_config: GlueSchemaRegistry | None = None
    output_raw_change_event: bool = False
    """True: an update of a unique key stays one update."""


KAFKA_PATH = ("sink", "kafka-config")
URI_PARAMS: dict[str, tuple[str, ...]] = {
    "protocol": ("sink", "protocol"),
    "schema-registry": ("sink", "schema-registry"),
    "transaction-atomicity": ("sink", "transaction-atomicity"),
    "only-output-updated-columns": ("sink", "only-output-updated-columns"),
    "content-compatible": ("sink", "content-compatible"),
    "debezium-disable-schema": ("sink", "debezium-disable-schema"),
    "debezium-include-start-ts": ("sink", "debezium", "include-start-ts"),
    **{
        name: (*KAFKA_PATH, name)
        for name in (
            "partition-num",
            "replication-factor",
            "kafka-version",
            "max-message-bytes",
            "max-retry",
            "compression",
            "kafka-client-id",
            "auto-create-topic",
            "required-acks",
            "dial-timeout",
            "read-timeout",
            "write-timeout",
            "enable-tls",
            "ca",
            "cert",
            "key",
            "insecure-skip-verify",
            "sasl-user",
            "sasl-password",
            "sasl-mechanism",
            "sasl-gssapi-auth-type",
            "sasl-gssapi-keytab-path",
            "sasl-gssapi-kerberos-config-path",
            "sasl-gssapi-service-name",
            "sasl-gssapi-user",
            "sasl-gssapi-password",
            "sasl-gssapi-realm",
            "sasl-gssapi-disable-pafxfast",
        )
    },
    **{
        name: (*KAFKA_PATH, "codec-config", name)
        for name in (
            "enable-tidb-extension",
            "max-batch-size",
            "avro-enable-watermark",
            "avro-decimal-handling-mode",
            "avro-bigint-unsigned-handling-mode",
            "encoding-format",
            "avro-include-before-value",
            "output-row-key",
        )
    },
    # TiCDC's old name of max-batch-size.
    "max-message-count": (*KAFKA_PATH, "codec-config", "max-batch-size"),
}
"""Parameters of a Kafka sink URI and the setting that each one overrides."""
