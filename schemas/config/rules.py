"""Rules between settings: what is missing, what excludes what, and texts with a grammar of their own."""

import re
from base64 import b64decode

from schemas.config.filter.event_names import EVENT_NAMES
from schemas.config.filter.expression_tokens import ExpressionTextError
from schemas.config.filter.filter_rule import parse_column_rule, parse_rule
from schemas.config.filter.re2 import Expression
from schemas.config.filter.value_expression import parse_expression
from schemas.config.lake_rules import check_lake
from schemas.config.parse.cron import parse_cron
from schemas.config.parse.duration import format_duration
from schemas.config.parse.origin import ExpressionParseError, Origin, Path
from schemas.config.parse.secret import is_url
from schemas.config.parse.section import shortest_duration, unknown_key
from schemas.config.settings import ChangefeedConfig
from schemas.config.sink.kafka import KAFKA_PATH
from schemas.config.sink.sink import AVRO_PROTOCOLS, ColumnSelector, DispatchRule
from schemas.config.sink.storage import STORAGE_PROTOCOLS
from schemas.config.sink.storage_uri import other_storage, parse_storage_uri
from schemas.config.sink.topic_rule import topic_expression_fault
from schemas.errors import shortened

PARTITION_RULES = ("default", "table", "index-value", "rowid", "columns", "ts")
"""``rowid`` is an old name of index-value."""
_CLIENT_ID = re.compile(r"[A-Za-z0-9._\-]+")
_KERBEROS_SETTINGS = ("auth-type", "keytab-path", "service-name", "user", "realm")
_KERBEROS_NAME = re.compile(r"[\w./@:+][\w./@:+-]*", re.ASCII)
_TARGET = re.compile(r"(?:[^{}]|\{schema\}|\{table\})*")
"""Of table routes, as TiCDC's ``validRoutingExpressionRegexp``."""
_CODEC_PATH = (*KAFKA_PATH, "codec-config")
_LARGE_PATH = (*KAFKA_PATH, "large-message-handle")
_QUOTED_CHARS_MAX = 200
"""Of an expression that does not parse: the key says where it stands."""


def check_changefeed(config: ChangefeedConfig, origin: Origin) -> None:
    """Hold the settings against each other.

    Raises:
        ConfigError: the first rule that is broken.
    """
    if config.uri.server is not None:
        _check_database(config, origin)
    elif config.uri.storage is not None or (config.uri.is_blackhole and config.protocol == "csv"):
        _check_storage(config, origin)
    elif config.uri.is_lake:
        check_lake(config, origin)
    else:
        _check_protocol(config, origin)
    _check_syncpoints(config, origin)
    _check_active_active(config, origin)
    _check_options_of_protocol(config, origin)
    _check_large_messages(config, origin)
    _check_integrity(config, origin)
    _check_security(config, origin)
    _check_filter(config, origin)
    for number, initial in enumerate(config.initial_rules):
        path = ("initial-rules", number, "matcher")
        if not initial.matcher:  # an event filter's may be empty: there it is TiCDC's
            text = "an empty `matcher` matches no table: name at least one table-filter rule, such as `shop.*`"
            raise origin.error(path, text)
        _check_matcher(initial.matcher, path, origin)
    _check_matcher(config.table_images.first, ("table-images", "first"), origin)
    _check_matcher(config.state_proofs, ("state-proofs",), origin)
    for index, rule in enumerate(config.sink.dispatchers):
        _check_dispatcher(rule, ("sink", "dispatchers", index), origin, protocol=config.protocol)
    for index, selector in enumerate(config.sink.column_selectors):
        _check_selector(selector, ("sink", "column-selectors", index), origin)


def _check_database(config: ChangefeedConfig, origin: Origin) -> None:
    if config.sink.protocol is not None:
        raise origin.error(("sink", "protocol"), "a database sink has no protocol")


def _check_syncpoints(config: ChangefeedConfig, origin: Origin) -> None:
    """As TiCDC, where they are on: off, nobody reads how often and for how long."""
    if not config.enable_sync_point:
        return
    for name, seconds, least in (
        ("sync-point-interval", config.sync_point_interval_s, "30s"),
        ("sync-point-retention", config.sync_point_retention_s, "1h"),
    ):
        if reason := shortest_duration(least)(seconds):
            raise origin.error((name,), f"`{name}` {reason} with enable-sync-point, got {format_duration(seconds)}")


def _check_active_active(config: ChangefeedConfig, origin: Origin) -> None:
    """As TiCDC's ``ReplicaConfig.ValidateAndAdjust``, but for database sinks."""
    path: Path = ("enable-active-active",)
    if not config.enable_active_active:
        return
    if config.uri.server is not None:
        text = "enable-active-active is not supported yet with a database sink: of two rows the later must win"
        raise origin.not_yet(path, text)
    if config.uri.storage is None:
        raise origin.error(path, "enable-active-active is for storage sinks (and for TiDB as sink in TiCDC)")
    if config.consistent.level != "none":
        raise origin.error(path, "enable-active-active excludes a redo log: set consistent.level to `none`")


def _check_storage(config: ChangefeedConfig, origin: Origin) -> None:
    sink, csv = config.sink, config.sink.csv
    if sink.protocol not in STORAGE_PROTOCOLS:
        text = "a storage sink writes csv or canal-json: write protocol=csv (or canal-json) into the sink URI"
        raise origin.error(("sink", "protocol"), text)
    if sink.transaction_atomicity == "table":
        at = ("sink", "transaction-atomicity")
        raise origin.error(at, "transaction-atomicity `table` is for database sinks; a storage sink takes only `none`")
    try:
        parse_cron(sink.cloud_storage.file_cleanup_cron_spec)
    except ValueError as error:
        spec_path = ("sink", "cloud-storage-config", "file-cleanup-cron-spec")
        raise origin.error(spec_path, f"file-cleanup-cron-spec {error}") from None
    path = ("sink", "csv")
    if not 1 <= len(csv.delimiter) <= 3:
        raise origin.error((*path, "delimiter"), "delimiter must have one to three characters")
    if len(csv.quote) > 1:
        raise origin.error((*path, "quote"), "quote must be one character, or none")
    for name, text in (("delimiter", csv.delimiter), ("quote", csv.quote)):
        if "\r" in text or "\n" in text:
            raise origin.error((*path, name), f"{name} must hold no line break")
    if csv.quote and csv.quote in csv.delimiter:
        raise origin.error((*path, "delimiter"), "delimiter must not hold the quote character")


def _check_protocol(config: ChangefeedConfig, origin: Origin) -> None:
    sink, path = config.sink, ("sink", "protocol")
    is_blackhole = config.uri.is_blackhole
    if sink.protocol is None and not is_blackhole:
        raise origin.error(path, "protocol is missing: write protocol=canal-json (or another) into the sink URI")
    if sink.protocol == "csv":
        raise origin.error(path, "protocol csv is for storage sinks; a Kafka sink takes canal-json, avro and others")
    if sink.transaction_atomicity == "table":
        at = ("sink", "transaction-atomicity")
        raise origin.error(at, "transaction-atomicity `table` is for database sinks; a Kafka sink takes only `none`")
    registry, glue = sink.schema_registry, config.kafka.glue_schema_registry_config
    if registry is not None and glue is not None:
        raise origin.error(
            ("sink", "schema-registry"), "schema-registry and glue-schema-registry-config exclude each other"
        )
    if glue is not None and (glue.access_key is None) != (glue.secret_access_key is None):
        glue_path = (*KAFKA_PATH, "glue-schema-registry-config")
        raise origin.error(glue_path, "glue-schema-registry-config: access-key and secret-access-key go together")
    if registry is not None and not is_url(registry.reveal()):
        raise origin.error(("sink", "schema-registry"), "schema-registry must be an http or https URL")
    if sink.protocol in AVRO_PROTOCOLS and registry is None and glue is None and not is_blackhole:
        how = "write schema-registry=http://host:port into the sink URI"
        raise origin.error(("sink", "schema-registry"), f"protocol {sink.protocol} needs a schema registry: {how}")
    if sink.protocol in AVRO_PROTOCOLS and config.force_replicate:
        text = f"force-replicate is not allowed with protocol {sink.protocol}: rows need a key"
        raise origin.error(("force-replicate",), text)


def _check_options_of_protocol(config: ChangefeedConfig, origin: Origin) -> None:
    sink = config.sink
    protocol = "open-protocol" if config.protocol == "default" else config.protocol

    def only_for(given: bool, path: Path, *protocols: str) -> None:
        if given and protocol not in protocols:
            allowed = " and ".join(protocols)
            raise origin.error(path, f"`{path[-1]}` is for {allowed}, and protocol is {protocol}")

    handle_only_path: Path = ("sink", "delete-only-output-handle-key-columns")
    if sink.delete_only_output_handle_key_columns and config.uri.server is None:
        # simple ignores it; avro and csv behave so already and refuse it.
        only_for(True, handle_only_path, "canal-json", "canal", "open-protocol", "simple")
        if config.force_replicate:
            raise origin.error(handle_only_path, "delete-only-output-handle-key-columns excludes force-replicate")
    codec = config.codec
    if codec.avro_enable_watermark and not codec.enable_tidb_extension:
        watermark_path = (*_CODEC_PATH, "avro-enable-watermark")
        raise origin.error(watermark_path, "avro-enable-watermark needs enable-tidb-extension=true")
    client_id = config.kafka.kafka_client_id
    if client_id is not None and not _CLIENT_ID.fullmatch(client_id):
        path = (*KAFKA_PATH, "kafka-client-id")
        raise origin.error(path, f"kafka-client-id may hold letters, digits, `.`, `_` and `-`, got `{client_id}`")


def _check_large_messages(config: ChangefeedConfig, origin: Origin) -> None:
    option = config.kafka.large_message_handle.large_message_handle_option
    path = (*_LARGE_PATH, "large-message-handle-option")
    if option == "none":
        return
    if config.protocol not in ("canal-json", "open-protocol", "default", "simple"):
        text = f"large-message-handle-option `{option}` is for canal-json, open-protocol and simple"
        raise origin.error(path, f"{text}, and protocol is {config.protocol}")
    if config.force_replicate:
        raise origin.error(path, f"large-message-handle-option `{option}` excludes force-replicate")
    if config.protocol == "canal-json" and not config.codec.enable_tidb_extension:
        raise origin.error(path, f"large-message-handle-option `{option}` needs enable-tidb-extension=true")
    if option == "claim-check" and config.uri.is_blackhole:
        raise origin.error(path, "large-message-handle-option `claim-check` writes files: a blackhole sink has none")
    if option == "claim-check":
        _check_claim_check(config, origin)


def _check_claim_check(config: ChangefeedConfig, origin: Origin) -> None:
    large = config.kafka.large_message_handle
    if large.claim_check_storage_uri is None:
        path = (*_LARGE_PATH, "large-message-handle-option")
        raise origin.error(path, "large-message-handle-option `claim-check` needs claim-check-storage-uri")
    path, uri = (*_LARGE_PATH, "claim-check-storage-uri"), large.claim_check_storage_uri.reveal()
    scheme = other_storage(uri)
    if scheme is not None:
        text = (
            f"claim-check-storage-uri of scheme `{scheme}` is not supported yet, supported are file, s3, gs and azure"
        )
        raise origin.not_yet(path, text)
    try:
        parse_storage_uri(uri)
    except ValueError as error:
        raise origin.error(path, f"claim-check-storage-uri {error}") from None
    if large.claim_check_raw_value and config.protocol in ("open-protocol", "default"):
        text = "claim-check-raw-value is for canal-json and simple: in open-protocol the key is part of the row"
        raise origin.error((*_LARGE_PATH, "claim-check-raw-value"), text)


def _check_integrity(config: ChangefeedConfig, origin: Origin) -> None:
    """Any protocol verifies; avro and simple pass the checksum on, and avro needs columns that it can be made of."""
    if not config.integrity.enabled:
        return
    path, codec = ("integrity", "integrity-check-level"), config.codec
    if config.sink.column_selectors and config.uri.server is None:  # a database has whole rows
        raise origin.error(path, "integrity-check-level `correctness` excludes column-selectors")
    strings = codec.avro_decimal_handling_mode == codec.avro_bigint_unsigned_handling_mode == "string"
    if config.protocol == "avro" and not (codec.enable_tidb_extension and strings):
        text = "integrity-check-level `correctness` with avro needs enable-tidb-extension=true, "
        text += "avro-decimal-handling-mode=string and avro-bigint-unsigned-handling-mode=string"
        raise origin.error(path, text)


def _check_security(config: ChangefeedConfig, origin: Origin) -> None:
    kafka = config.kafka
    if (kafka.cert is None) != (kafka.key is None):
        missing, given = ("key", "cert") if kafka.key is None else ("cert", "key")
        raise origin.error(
            (*KAFKA_PATH, given), f"`{given}` is given without `{missing}`: ca, cert and key go together"
        )
    if kafka.cert is not None and kafka.ca is None:
        raise origin.error((*KAFKA_PATH, "cert"), "`cert` and `key` are given without `ca`: they go together")
    if kafka.enable_tls is False and (kafka.ca is not None or config.uri.scheme == "kafka+ssl"):
        what = "a certificate is given" if kafka.ca is not None else "the scheme is kafka+ssl"
        raise origin.error((*KAFKA_PATH, "enable-tls"), f"enable-tls=false, but {what}")
    if kafka.ca is not None and kafka.cert is None and not (kafka.enable_tls or config.uri.scheme == "kafka+ssl"):
        text = "`ca` alone needs kafka+ssl:// or enable-tls=true; with plain kafka:// give ca, cert and key"
        raise origin.error((*KAFKA_PATH, "ca"), text)
    for name in _KERBEROS_SETTINGS:
        value = getattr(kafka, f"sasl_gssapi_{name.replace('-', '_')}")
        if value and value != "USER" and kafka.sasl_mechanism != "GSSAPI":
            text = f"`sasl-gssapi-{name}` is given without `sasl-mechanism` GSSAPI"
            raise origin.error((*KAFKA_PATH, f"sasl-gssapi-{name}"), text)
    if kafka.sasl_mechanism is None:
        given = "sasl-user" if kafka.sasl_user is not None else "sasl-password"
        if kafka.sasl_user is not None or kafka.sasl_password is not None:
            text = f"`{given}` is given without `sasl-mechanism` (PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512)"
            raise origin.error((*KAFKA_PATH, given), text)
    elif kafka.sasl_mechanism == "OAUTHBEARER":
        _check_oauth(config, origin)
    elif kafka.sasl_mechanism == "GSSAPI":
        _check_kerberos(config, origin)
    elif kafka.sasl_mechanism.startswith(("PLAIN", "SCRAM")) and (not kafka.sasl_user or kafka.sasl_password is None):
        text = f"sasl-mechanism {kafka.sasl_mechanism} needs sasl-user and sasl-password"
        raise origin.error((*KAFKA_PATH, "sasl-mechanism"), text)


def _check_kerberos(config: ChangefeedConfig, origin: Origin) -> None:
    if config.kafka.sasl_gssapi_auth_type == "USER":
        text = "sasl-gssapi-auth-type `USER` is not supported yet: the Kafka client gets its tickets by a KEYTAB"
        raise origin.not_yet((*KAFKA_PATH, "sasl-gssapi-auth-type"), text)
    for name in _KERBEROS_SETTINGS:
        value = getattr(config.kafka, f"sasl_gssapi_{name.replace('-', '_')}")
        if not value:
            at = (*KAFKA_PATH, f"sasl-gssapi-{name}")
            raise origin.error(at, f"sasl-mechanism GSSAPI needs sasl-gssapi-{name}")
        # They go into the command that librdkafka's shell is given to get tickets.
        if _KERBEROS_NAME.fullmatch(value) is None:
            at = (*KAFKA_PATH, f"sasl-gssapi-{name}")
            raise origin.error(at, f"sasl-gssapi-{name} may hold letters, digits and `._/@:+-`")


def _check_oauth(config: ChangefeedConfig, origin: Origin) -> None:
    kafka = config.kafka
    for name in ("client-id", "client-secret", "token-url"):
        if getattr(kafka, f"sasl_oauth_{name.replace('-', '_')}") is None:
            at = (*KAFKA_PATH, f"sasl-oauth-{name}")
            raise origin.error(at, f"sasl-mechanism OAUTHBEARER needs sasl-oauth-{name}")
    assert kafka.sasl_oauth_client_secret is not None
    try:
        b64decode(kafka.sasl_oauth_client_secret.reveal(), validate=True).decode()
    except ValueError:
        text = "sasl-oauth-client-secret must be the secret in base64"
        raise origin.error((*KAFKA_PATH, "sasl-oauth-client-secret"), text) from None
    if not is_url(kafka.sasl_oauth_token_url or ""):
        text = "sasl-oauth-token-url must be an http or https URL"
        raise origin.error((*KAFKA_PATH, "sasl-oauth-token-url"), text)


def _check_filter(config: ChangefeedConfig, origin: Origin) -> None:
    _check_matcher(config.filter.rules, ("filter", "rules"), origin)
    names = dict.fromkeys(EVENT_NAMES)
    for index, rule in enumerate(config.filter.event_filters):
        path = ("filter", "event-filters", index)
        _check_matcher(rule.matcher, (*path, "matcher"), origin)
        for number, name in enumerate(rule.ignore_event):
            if name.strip().lower() not in names:
                here = (*path, "ignore-event", number)
                raise origin.error(here, unknown_key(name, names, "of ignore-event").replace("key", "event", 1))
        for event in ("insert", "update-new", "update-old", "delete"):
            _check_expression(getattr(rule, f"ignore_{event.replace('-', '_')}_value_expr"), path, event, origin)
        for number, expression in enumerate(rule.ignore_sql):
            try:
                Expression(expression)
            except ValueError as error:
                raise origin.error((*path, "ignore-sql", number), str(error)) from None


def _check_expression(text: str, path: Path, event: str, origin: Origin) -> None:
    here = (*path, f"ignore-{event}-value-expr")
    try:
        if text:
            parse_expression(text)
    except ExpressionTextError as error:
        shown = shortened(text, _QUOTED_CHARS_MAX)
        raise ExpressionParseError(f"{here[-1]} `{shown}`: {error}", **origin.where(here)) from None


def _check_matcher(rules: tuple[str, ...], path: Path, origin: Origin) -> None:
    for index, rule in enumerate(rules):
        try:
            parse_rule(rule)
        except ValueError as error:
            raise origin.error((*path, index), f"table-filter rule `{rule}` is illegal: {error}") from None


def _check_selector(selector: ColumnSelector, path: Path, origin: Origin) -> None:
    _check_matcher(selector.matcher, (*path, "matcher"), origin)
    for index, rule in enumerate(selector.columns):
        try:
            parse_column_rule(rule)
        except ValueError as error:
            text = f"column rule `{rule}` is illegal: {error}"
            raise origin.error((*path, "columns", index), text) from None


def _check_dispatcher(rule: DispatchRule, path: Path, origin: Origin, *, protocol: str) -> None:
    _check_matcher(rule.matcher, (*path, "matcher"), origin)
    if rule.partition and rule.dispatcher:
        text = "`partition` and `dispatcher` are given: they mean the same (dispatcher is the old name), give one"
        raise origin.error((*path, "dispatcher"), text)
    fault = topic_expression_fault(rule.topic, needs_table=protocol in AVRO_PROTOCOLS) if rule.topic else None
    if fault:
        raise origin.error((*path, "topic"), fault)
    for name, expression in (("target-schema", rule.target_schema), ("target-table", rule.target_table)):
        if not _TARGET.fullmatch(expression):
            text = f"{name} `{expression}` must hold nothing in braces but {{schema}} and {{table}}"
            raise origin.error((*path, name), text)
    partition = (rule.partition or rule.dispatcher or "default").lower()
    if rule.columns and partition != "columns":
        raise origin.error((*path, "columns"), f'`columns` goes with partition = "columns", got "{partition}"')
    if partition == "columns" and not rule.columns:
        raise origin.error(path, 'partition = "columns" needs the list `columns`')
