"""Our error codes as TiCDC's: the one table. A test holds it against every error class that there is.

TiCDC's codes are what its clients and runbooks look for; where it has none of the same meaning, an error is
``CDC:ErrInternalServerError`` to them, and our own code, which stands in the text, says more.
"""

from http import HTTPStatus
from typing import Final

INTERNAL: Final = "CDC:ErrInternalServerError"
INVALID: Final = "CDC:ErrAPIInvalidParam"
NOT_READY: Final = "CDC:ErrServerIsNotReady"

CDC_CODES: Final = {
    "api.busy": NOT_READY,
    "api.content_type": INVALID,
    "api.login_delayed": "CDC:ErrUnauthorized",
    "api.wrong_host": INVALID,
    "api.wrong_origin": INVALID,
    "api.address": "CDC:ErrServeHTTP",
    "api.invalid": INVALID,
    "api.no_owner": "CDC:ErrOwnerNotFound",
    "api.no_such_capture": "CDC:ErrCaptureNotExist",
    "api.no_such_route": "CDC:ErrAPINotFound",
    "api.not_ready": NOT_READY,
    "api.forward_failed": "CDC:ErrRequestForwardErr",
    "api.scheduler_refused": "CDC:ErrSchedulerRequestFailed",
    "api.tls_file": "CDC:ErrInvalidServerOption",
    "api.strange_answer": INTERNAL,
    "api.tls_refused": "CDC:ErrInvalidServerOption",
    "api.refused": INTERNAL,
    "api.refused_request": INVALID,
    "api.unauthorized": "CDC:ErrUnauthorized",
    "api.unreachable": NOT_READY,
    "bus.config": INVALID,  # or by the setting's key: see KEY_CODES
    "cluster.runs": INTERNAL,
    "bus.corrupt_data": "CDC:ErrDecodeFailed",
    "changefeed.exists": "CDC:ErrChangeFeedAlreadyExists",
    "changefeed.same_cluster": "CDC:ErrSameUpstreamDownstream",
    "changefeed.sink_refused": "CDC:ErrSinkURIInvalid",
    "changefeed.table_ineligible": "CDC:ErrTableIneligible",
    "changefeed.no_frontier": NOT_READY,
    "changefeed.not_found": "CDC:ErrChangeFeedNotExists",
    "changefeed.start_ts": "CDC:ErrStartTsBeforeGC",
    "changefeed.resume_refused": INVALID,
    "changefeed.update_refused": "CDC:ErrChangefeedUpdateRefused",
    "config.expression_parse_failed": "CDC:ErrExpressionParseFailed",
    "config.not_supported_yet": INVALID,  # or by the setting's key
    "frontier.lost": "CDC:ErrSnapshotLostByGC",
    "images.refused": INVALID,
    "mount.corrupt_checksum": "CDC:ErrCorruptedDataMutation",
    "mount.corrupt_row": "CDC:ErrDecodeRowToDatum",
    "producer.cluster_id_mismatch": "CDC:ErrClusterIDMismatch",
    "producer.history_gone": "CDC:ErrSnapshotLostByGC",
    "producer.pd_refused": "CDC:ErrPDEtcdAPIError",
    "producer.pd_unimplemented": "CDC:ErrPDEtcdAPIError",
    "producer.pd_unreachable": "CDC:ErrPDEtcdAPIError",
    "producer.prewrite_not_match": "CDC:ErrPrewriteNotMatch",
    "producer.regions_unknown": "CDC:ErrGetRegionFailed",
    "producer.snapshot_failed": "CDC:ErrGetStoreSnapshot",
    "producer.store_unavailable": "CDC:ErrGetTiKVRPCContext",
    "producer.version_incompatible": "CDC:ErrVersionIncompatible",
    "scheduling.drain_refused": "CDC:ErrSchedulerRequestFailed",
    "scheduling.multiple_primary": "CDC:ErrReplicationSetMultiplePrimaryError",
    "scheduling.not_initialized": NOT_READY,
    "scheduling.version_mismatch": "CDC:ErrVersionIncompatible",
    "scheduling.move_refused": "CDC:ErrSchedulerRequestFailed",
    "scheduling.not_owner": "CDC:ErrOwnerNotFound",
    "scheduling.owner_busy": NOT_READY,
    "schema.history_gone": "CDC:ErrSchemaStorageGCed",
    "schema.inconsistent_ddl": "CDC:ErrInvalidDDLJob",
    "schema.undecodable_ddl": "CDC:ErrInvalidDDLJob",
    "schema.unknown_table": "CDC:ErrSnapshotTableNotFound",
    "sink.encode_refused": "CDC:ErrEncodeFailed",
    "sink.message_too_large": "CDC:ErrMessageTooLarge",
    "sorter.active_active_table": "CDC:ErrInvalidReplicaConfig",
    "sorter.column_selector_failed": "CDC:ErrColumnSelectorFailed",
    "sorter.dispatch_failed": "CDC:ErrDispatcherFailed",
    "sorter.expression_column_not_found": "CDC:ErrExpressionColumnNotFound",
    "sorter.expression_misfit": "CDC:ErrExpressionParseFailed",
    "sorter.expression_out_of_range": "CDC:ErrExpressionParseFailed",
    "sorter.history_lost": "CDC:ErrSnapshotLostByGC",
    "sorter.kafka_unreachable": "CDC:ErrKafkaSendMessage",
    "sorter.registry_unreachable": "CDC:ErrAvroSchemaAPIError",
    "sorter.rename_into_filter": "CDC:ErrSyncRenameTableFailed",
    "sorter.schema_refused": "CDC:ErrAvroSchemaAPIError",
    "sorter.soft_delete_table": "CDC:ErrInvalidReplicaConfig",
    "sorter.table_became_ineligible": "CDC:ErrTableIneligible",
    "sorter.topic_missing": "CDC:ErrKafkaTopicNotExists",
    "sorter.topic_partitions": "CDC:ErrKafkaInvalidPartitionNum",
    "sorter.topic_refused": "CDC:ErrKafkaCreateTopic",
    "sorter.topic_replication": "CDC:ErrKafkaInvalidConfig",
    "zookeeper.lease_lost": NOT_READY,
    "zookeeper.request_failed": NOT_READY,
    "zookeeper.unreachable": NOT_READY,
}
KEY_CODES: Final = {
    "sink-uri": "CDC:ErrSinkURIInvalid",
    "target-ts": "CDC:ErrTargetTsBeforeStartTs",
    "filter": "CDC:ErrFilterRuleInvalid",
}
"""Of a setting that is not allowed, by the first word of its key."""

STATUSES: Final = {
    **dict.fromkeys(
        (
            INVALID,
            "CDC:ErrSinkURIInvalid",
            "CDC:ErrStartTsBeforeGC",
            "CDC:ErrChangeFeedNotExists",
            "CDC:ErrTargetTsBeforeStartTs",
            "CDC:ErrTableIneligible",
            "CDC:ErrFilterRuleInvalid",
            "CDC:ErrChangefeedUpdateRefused",
            "CDC:ErrMySQLConnectionError",
            "CDC:ErrMySQLInvalidConfig",
            "CDC:ErrCaptureNotExist",
            "CDC:ErrSchedulerRequestFailed",
        ),
        HTTPStatus.BAD_REQUEST,
    ),
    "CDC:ErrUnauthorized": HTTPStatus.UNAUTHORIZED,
    "CDC:ErrAPINotFound": HTTPStatus.NOT_FOUND,
    NOT_READY: HTTPStatus.SERVICE_UNAVAILABLE,
    "CDC:ErrOwnerNotFound": HTTPStatus.SERVICE_UNAVAILABLE,
}
"""HTTP status of TiCDC's code, as TiCDC answers; any other is 500."""

OWN_STATUSES: Final = {
    "api.busy": HTTPStatus.SERVICE_UNAVAILABLE,
    "api.content_type": HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    "api.login_delayed": HTTPStatus.TOO_MANY_REQUESTS,
    "api.wrong_host": HTTPStatus.MISDIRECTED_REQUEST,
    "api.wrong_origin": HTTPStatus.FORBIDDEN,
    # TiCDC answers 500; but what was asked for is wrong, and stays so however often it is asked for.
    "config.expression_parse_failed": HTTPStatus.BAD_REQUEST,
    "sorter.expression_column_not_found": HTTPStatus.BAD_REQUEST,
    "sorter.expression_misfit": HTTPStatus.BAD_REQUEST,
}
"""HTTP status of what TiCDC does not refuse, or not with the right one, by our own code."""
