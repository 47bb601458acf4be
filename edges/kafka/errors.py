"""What can go wrong with a client of Kafka, and with a topic that is read by offset."""

from collections.abc import Mapping

from schemas.errors import Action, BusError


class KafkaSettingsError(BusError):
    """Kafka's client cannot be made with its settings: a file that it cannot read, a key of another certificate."""

    code, action = "kafka.settings_refused", Action.STOP_CHANGEFEED


class KafkaUnreachableError(BusError):
    """The Kafka cluster, or a leader of a partition, did not answer in time."""

    code, action = "sorter.kafka_unreachable", Action.RETRY


class HistoryLostError(BusError):
    """The raw log no longer holds what the checkpoint needs: Kafka's retention has passed it."""

    code, action = "sorter.history_lost", Action.STOP_CHANGEFEED


def address_of(config: Mapping[str, object]) -> str:
    """Return which brokers a client of librdkafka's settings asks, for an error to say."""
    return str(config.get("bootstrap.servers", ""))
