"""Give Kafka the captures' user and rights: ``python -P -m compose.deployment.kafka_user --admin FILE --user FILE``.

Both are files of librdkafka's settings: whoever may alter the cluster, and ``sasl.username`` with ``sasl.password`` of
the user. Giving them again changes nothing but the password, so this also rotates it.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from compose.stack.secure.acls import PROLOGUE_PREFIX, admit
from edges.kafka.clients import kafka_admin
from edges.kafka.settings import KAFKA_KEYS
from edges.properties import read_properties

RIGHTS = {
    (ResourceType.TOPIC, "tidebus."): (
        AclOperation.CREATE,
        AclOperation.ALTER_CONFIGS,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.READ,
        AclOperation.WRITE,
    ),
    (ResourceType.TOPIC, PROLOGUE_PREFIX): (AclOperation.DELETE,),
    (ResourceType.GROUP, "tidebus-"): (AclOperation.READ, AclOperation.DESCRIBE),
}
"""Of captures with their sorters and processors, by prefix of the name: the bus's own topics. Topics of changefeeds are
written by the user that the changefeed's sink URI names."""


def bindings(user: str) -> list[AclBinding]:
    """Return the ACLs that give a user these rights."""
    prefixed, allow = ResourcePatternType.PREFIXED, AclPermissionType.ALLOW
    return [
        AclBinding(kind, prefix, prefixed, f"User:{user}", "*", operation, allow)
        for (kind, prefix), operations in RIGHTS.items()
        for operation in operations
    ]


def read_settings(path: Path, option: str) -> dict[str, str]:
    """Return the settings of the file that ``option`` names.

    Raises:
        SecretFileModeError: others can read a password in it.
        ConfigError: it is not readable, or a setting is none of Kafka's.
    """
    return read_properties(path, replace(KAFKA_KEYS, option=option))


def main() -> None:
    """Admit the user."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--admin", type=Path, required=True)
    parser.add_argument("--user", type=Path, required=True)
    given = parser.parse_args()
    user = read_settings(given.user, "--user")
    name = user["sasl.username"]
    admit(kafka_admin(read_settings(given.admin, "--admin")), {name: user["sasl.password"]}, bindings(name))
    print(f"user {name} is admitted")


if __name__ == "__main__":
    main()
