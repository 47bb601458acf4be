"""A changefeed as workers need it: its settings compiled once, and what the driver found out for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, tzinfo

from schemas.config.parse.raw_offsets import RawOffsets
from schemas.config.settings import ChangefeedConfig
from schemas.config.sink.storage_uri import parse_storage_uri
from schemas.errors import ConfigError
from schemas.sink.topic import ROW_MESSAGE_BYTES_MAX
from schemas.tidb.table import TableVersion
from schemas.tidb.time_zone import load_zone
from sorters.core.encode.avro.encoder import AvroEncoder
from sorters.core.encode.canal.json import CanalJsonEncoder
from sorters.core.encode.canal.protobuf import CanalEncoder
from sorters.core.encode.debezium.avro import DebeziumAvroEncoder
from sorters.core.encode.debezium.encoder import DebeziumEncoder
from sorters.core.encode.open.encoder import OpenProtocolEncoder
from sorters.core.encode.simple.avro import SimpleAvroEncoder
from sorters.core.encode.simple.encoder import SimpleEncoder
from sorters.core.encode.simple.json import SimpleJsonEncoder
from sorters.core.encode.sql.rows import SqlRowsEncoder
from sorters.core.encode.storage.csv_lines import CsvLines
from sorters.core.encode.storage.csv_values import CsvForm
from sorters.core.encode.storage.rows import CanalJsonLines, LineFormat, StorageEncoder
from sorters.core.encode.wire.compressed import CompressedBootstraps, CompressedEncoder, Compression
from sorters.core.encode.wire.protocol import BootstrapEncoder, Encoder, Partitions, SchemaIds, SchemaText
from sorters.core.feed.claim_check import ClaimCheck
from sorters.core.feed.large_messages import WHAT_HELPS, WHAT_HELPS_BEFORE_A_PROCESSOR, LargeMessages
from sorters.core.filter.event_filter import EventFilter
from sorters.core.filter.initial_tables import InitialTables, initial_tables
from sorters.core.filter.table_filter import TableFilter
from sorters.core.filter.update_columns import UpdateColumns
from sorters.core.records.row_batches import RowJoin, message_limit
from sorters.core.route.column_selector import ColumnSelectorError, ColumnSelectors, Selection
from sorters.core.route.dispatch import Dispatcher, DispatchError, Route
from sorters.core.route.table_route import TableRoutes

_NEVER_MS = 1000 * 365 * 86_400_000
"""An interval that no changefeed lives to see."""


@dataclass(frozen=True, kw_only=True)
class Bootstraps:
    """How tables' schemas are sent, beside DDL events."""

    encoder: BootstrapEncoder
    interval_ms: int
    partitions: Partitions


@dataclass(frozen=True, kw_only=True)
class CompiledFeed:
    """Picklable; ``schema_ids`` and ``partitions`` hold every table and topic that rows may need."""

    filter: TableFilter
    dispatcher: Dispatcher
    selectors: ColumnSelectors
    routes: TableRoutes
    """Names at the destination; all else here goes by names of the upstream."""
    encoder: Encoder
    default_topic: str
    events: EventFilter
    update_columns: UpdateColumns
    force_replicate: bool = False
    """Also rows of tables without a usable key."""
    split_updates: bool = True
    """An update of a unique key becomes a delete and an insert (``output-raw-change-event = false``)."""
    verify_checksums: bool = False
    """``integrity-check-level = "correctness"``."""
    stop_at_corrupt: bool = False
    """``corruption-handle-level = "error"``."""
    bdr_mode: bool = False
    """Leave out what another replication wrote into this upstream, and DDL of clusters that are not the primary one."""
    active_active: bool = False
    """Every table is ACTIVE_ACTIVE, and only its DELETEs are left out (``enable-active-active``)."""
    ignore_start_ts: frozenset[int] = frozenset()
    skipped_records: RawOffsets = RawOffsets()
    """Raw partitions and offsets of damaged records that an operator lets be passed over."""
    zone: tzinfo = UTC
    """That rows are mounted in."""
    message_bytes_max: int = 10 * 1024 * 1024
    """``max-message-bytes``."""
    partitions: Mapping[str, int] = field(default_factory=dict)
    """Partitions to use, by topic."""
    large_messages: LargeMessages | None = None
    """What becomes of a row whose message is larger than allowed; None: an error."""
    topic_message_bytes: Mapping[str, int] = field(default_factory=dict)
    """Largest message that a topic takes, by topic."""
    schema_ids: SchemaIds = field(default_factory=dict)
    bootstraps: Bootstraps | None = None
    """None: the protocol has none, or the changefeed turned them off."""
    state_proofs: TableFilter | None = None
    """Tables whose state proofs are carried; None: no table's."""
    initial: InitialTables | None = None
    """Tables that get an image when they come to the changefeed; None: no run of this feed brings any."""
    initial_schemas: InitialTables | None = None
    """Tables that the destination is told of before the first row (``initial-schema``); None: of none."""
    flow_writer: str = ""
    """Who tells processors the sums of what they are to read (:mod:`schemas.sink.flow_mark`); '': nobody does."""

    def topic(self, schema: str, table: str) -> str:
        """Return the topic of a table's rows."""
        return self.dispatcher.topic(schema, table)

    def asks_for_columns(self, schema: str, table: str) -> bool:
        """Tell whether a table's columns may not fit the settings: a dispatcher rule, selector or filter names some."""
        by_rule = self.dispatcher.rule_for(schema, table).asks_for_columns
        return by_rule or self.selectors.concerns(schema, table) or self.events.has_conditions(schema, table)

    @property
    def may_misfit(self) -> bool:
        """Whether there are tables that :meth:`asks_for_columns` is true of."""
        by_rule = any(rule.asks_for_columns for rule in self.dispatcher.rules)
        return by_rule or self.selectors.any or self.events.any_conditions

    def select(self, table: TableVersion) -> tuple[Route, Selection | None]:
        """Return a table version's route, and what column selectors leave of it (None: all).

        Raises:
            DispatchError, ColumnSelectorError: the settings do not fit the table.
        """
        route = self.dispatcher.route(table)
        selection = self.selectors.select(table, route)
        return (route, None) if selection is None else (selection.route, selection)

    def row_schemas(self, table: TableVersion) -> tuple[SchemaText, ...]:
        """Return the schemas that the table's rows need registered; none if the settings do not fit the table.

        Its first row says so then: a misfit without rows is no error.
        """
        try:
            route, selection = self.select(table)
        except (DispatchError, ColumnSelectorError):
            return ()
        sent = table if selection is None else selection.table
        return self.encoder.schemas(self.routes.version(sent), route.topic)

    def message_limit(self, topic: str) -> int:
        """Return the largest message that may go to a topic: key, value and overhead."""
        return message_limit(topic, self.message_bytes_max, self.topic_message_bytes)

    @property
    def is_sql(self) -> bool:
        """Whether rows go into a database."""
        return isinstance(self.encoder, SqlRowsEncoder)

    @property
    def has_processors(self) -> bool:
        """Whether the topics are the bus's own, read by its processors."""
        return isinstance(self.encoder, SqlRowsEncoder | StorageEncoder)

    def row_message_limit(self, *topics: str) -> int:
        """Return the largest message that a row may make in any of the topics, in parts if need be."""
        return ROW_MESSAGE_BYTES_MAX if self.has_processors else min(map(self.message_limit, set(topics)))

    @property
    def what_helps_large_rows(self) -> str:
        """What a user may change where a message is too large."""
        return WHAT_HELPS_BEFORE_A_PROCESSOR if self.has_processors else WHAT_HELPS

    @property
    def row_join(self) -> RowJoin | None:
        """What joins neighbouring rows, for whoever writes the records; None: a message holds one row."""
        joiner = self.encoder.joiner
        if joiner is None:
            return None
        return RowJoin(joiner, self.message_bytes_max, self.topic_message_bytes, cuts_rows=self.has_processors)

    def contains(self, schema: str, table: str, *, eligible: bool) -> bool:
        """Tell whether rows of a table go downstream."""
        return (eligible or self.force_replicate) and self.filter.matches(schema, table)


def compile_feed(
    config: ChangefeedConfig, namespace: str, partitions: Mapping[str, int] | None = None, *, changefeed_id: str = ""
) -> CompiledFeed:
    """Compile a changefeed's settings; a dry run gives ``partitions`` itself, a sorter asks the broker later.

    Args:
        changefeed_id: with the namespace in the names of files that the changefeed stores.

    Raises:
        ConfigError: the protocol has no encoder.
    """
    plain = _encoder(config, namespace)
    encoder = _compressed(config, plain)
    # A database has moments, whatever the zone: rows for it stay in UTC, and only filters look at them in the zone.
    zone, is_sql = load_zone(config.time_zone), isinstance(plain, SqlRowsEncoder)
    return CompiledFeed(
        filter=TableFilter(config.filter.rules, config.case_sensitive),
        dispatcher=Dispatcher(config),
        selectors=ColumnSelectors(config),
        routes=TableRoutes(config),
        update_columns=UpdateColumns(config),
        events=EventFilter(
            config.filter.event_filters,
            config.origin,
            case_sensitive=config.case_sensitive,
            zone=zone if is_sql else UTC,
            session_zone=zone,
        ),
        encoder=encoder,
        default_topic=config.default_topic,
        force_replicate=config.force_replicate,
        split_updates=not _keeps_updates(config),
        verify_checksums=config.integrity.enabled,
        stop_at_corrupt=config.integrity.corruption_handle_level == "error",
        bdr_mode=config.bdr_mode,
        active_active=config.enable_active_active,
        ignore_start_ts=frozenset(config.filter.ignore_txn_start_ts),
        skipped_records=config.filter.skipped_records,
        zone=UTC if is_sql else zone,
        message_bytes_max=config.kafka.max_message_bytes,
        partitions=dict(partitions or {}),
        bootstraps=_bootstraps(config, plain),
        initial=initial_tables(config),
        initial_schemas=initial_tables(config) if _tells_tables(config, plain) else None,
        state_proofs=TableFilter(config.state_proofs, config.case_sensitive) if config.state_proofs else None,
        large_messages=_large_messages(config, plain, f"{namespace}/{changefeed_id}"),
    )


def _tells_tables(config: ChangefeedConfig, encoder: Encoder) -> bool:
    if not (config.initial_schema and config.wants_initial):
        return False
    if config.uri.server is not None:
        return True
    if isinstance(encoder, StorageEncoder) or config.uri.is_lake:
        return False
    return encoder.ddl_partitions is not Partitions.NONE and _bootstraps(config, encoder) is None


def _keeps_updates(config: ChangefeedConfig) -> bool:
    """``output-raw-change-event``, of the sink that there is."""
    if config.uri.storage is not None or config.protocol == "csv":
        return config.sink.cloud_storage.output_raw_change_event
    return config.kafka.output_raw_change_event


def _compression(config: ChangefeedConfig) -> Compression:
    return Compression(config.kafka.large_message_handle.large_message_handle_compression)


def _compressed(config: ChangefeedConfig, plain: Encoder) -> Encoder:
    """Return the encoder as it is where it compresses by itself, or its protocol never does."""
    compression = _compression(config)
    if compression is Compression.NONE or not isinstance(plain, CanalJsonEncoder | SimpleEncoder | DebeziumEncoder):
        return plain
    return CompressedEncoder(inner=plain, compression=compression, with_keys=isinstance(plain, DebeziumEncoder))


def _large_messages(config: ChangefeedConfig, plain: Encoder, changefeed: str) -> LargeMessages | None:
    """Settings were held against the protocol when they were read."""
    kinds = CanalJsonEncoder | OpenProtocolEncoder | SimpleEncoder
    large = config.kafka.large_message_handle
    if large.large_message_handle_option == "none" or not isinstance(plain, kinds):
        return None
    outer, uri = _compressed(config, plain), large.claim_check_storage_uri
    encoder = outer if isinstance(outer, CompressedEncoder) else plain
    if large.large_message_handle_option == "handle-key-only" or uri is None:
        return LargeMessages(encoder=encoder)
    claim_check = ClaimCheck(
        storage=parse_storage_uri(uri.reveal()), raw_value=large.claim_check_raw_value, changefeed=changefeed
    )
    return LargeMessages(encoder=encoder, claim_check=claim_check)


def _bootstraps(config: ChangefeedConfig, encoder: Encoder) -> Bootstraps | None:
    sink = config.sink
    if isinstance(encoder, StorageEncoder):
        # Files stay: a schema is told when the changefeed begins, and when it changes.
        return Bootstraps(encoder=encoder, interval_ms=_NEVER_MS, partitions=Partitions.FIRST)
    if not isinstance(encoder, SimpleEncoder):
        return None
    if not (sink.send_bootstrap_interval_s and sink.send_bootstrap_messages):
        return None
    partitions = Partitions.ALL if sink.send_bootstrap_to_all_partition else Partitions.FIRST
    compressed = CompressedBootstraps(encoder, _compression(config))
    return Bootstraps(encoder=compressed, interval_ms=sink.send_bootstrap_interval_s * 1000, partitions=partitions)


def _storage_encoder(config: ChangefeedConfig) -> StorageEncoder:
    sink, csv = config.sink, config.sink.csv
    lines: LineFormat
    if config.protocol == "csv":
        form = CsvForm(
            delimiter=csv.delimiter,
            quote=csv.quote,
            null=csv.null,
            binary_encoding_method=csv.binary_encoding_method,
        )
        lines = CsvLines(
            form=form,
            terminator=sink.terminator,
            include_commit_ts=csv.include_commit_ts,
            output_old_value=csv.output_old_value,
            output_field_header=csv.output_field_header,
        )
    else:
        encoder = CanalJsonEncoder(
            enable_tidb_extension=config.codec.enable_tidb_extension,
            only_output_updated_columns=sink.only_output_updated_columns,
            content_compatible=sink.content_compatible,
            delete_only_output_handle_key_columns=sink.delete_only_output_handle_key_columns,
            output_row_key=config.codec.output_row_key,
        )
        lines = CanalJsonLines(encoder=encoder, terminator=sink.terminator)
    return StorageEncoder(
        format=lines,
        start_ts=config.start_ts,
        separate_partitions=sink.enable_partition_separator,
        output_column_id=sink.cloud_storage.output_column_id,
        use_table_id_as_path=sink.cloud_storage.use_table_id_as_path,
    )


def _encoder(config: ChangefeedConfig, namespace: str) -> Encoder:
    if config.uri.storage is not None or config.protocol == "csv":  # the latter is a blackhole's, too
        return _storage_encoder(config)
    codec = config.codec
    match config.protocol:
        case "canal-json":
            return CanalJsonEncoder(
                enable_tidb_extension=codec.enable_tidb_extension,
                only_output_updated_columns=config.sink.only_output_updated_columns,
                content_compatible=config.sink.content_compatible,
                delete_only_output_handle_key_columns=config.sink.delete_only_output_handle_key_columns,
                output_row_key=codec.output_row_key,
            )
        case "avro":
            return AvroEncoder(
                enable_tidb_extension=codec.enable_tidb_extension,
                avro_decimal_handling_mode=codec.avro_decimal_handling_mode,
                avro_bigint_unsigned_handling_mode=codec.avro_bigint_unsigned_handling_mode,
                avro_include_before_value=codec.avro_include_before_value,
                avro_enable_watermark=codec.avro_enable_watermark,
                row_checksum=config.integrity.enabled,
                namespace=namespace,
                glue=config.kafka.glue_schema_registry_config is not None,
            )
        case "open-protocol" | "default":
            return OpenProtocolEncoder(
                output_old_value=config.sink.open.output_old_value,
                max_batch_size=codec.max_batch_size,
                compression=_compression(config),
                only_output_updated_columns=config.sink.only_output_updated_columns,
                delete_only_output_handle_key_columns=config.sink.delete_only_output_handle_key_columns,
            )
        case "canal":
            return CanalEncoder(
                delete_only_output_handle_key_columns=config.sink.delete_only_output_handle_key_columns,
            )
        case "simple":
            simple = SimpleAvroEncoder if codec.encoding_format == "avro" else SimpleJsonEncoder
            return simple(location=config.time_zone)
        case "debezium":
            return DebeziumEncoder(
                enable_tidb_extension=codec.enable_tidb_extension,
                debezium_disable_schema=config.sink.debezium_disable_schema,
                output_old_value=config.sink.debezium.output_old_value,
                include_start_ts=config.sink.debezium.include_start_ts,
                zone=load_zone(config.time_zone),
            )
        case "debezium-avro":
            return DebeziumAvroEncoder(
                enable_tidb_extension=codec.enable_tidb_extension,
                avro_decimal_handling_mode=codec.avro_decimal_handling_mode,
                avro_bigint_unsigned_handling_mode=codec.avro_bigint_unsigned_handling_mode,
                output_old_value=config.sink.debezium.output_old_value,
                avro_enable_watermark=codec.avro_enable_watermark,
                zone=load_zone(config.time_zone),
                glue=config.kafka.glue_schema_registry_config is not None,
            )
        case "sql-rows":
            return SqlRowsEncoder()
        case protocol:
            raise ConfigError("protocol has no encoder yet", key="protocol", protocol=protocol)
