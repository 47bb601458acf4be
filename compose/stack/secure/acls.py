"""Who may do what in the bus's Kafka: the least that each role needs, as docs/security.md lists it.

A capture makes and writes the raw log; a sorter reads it, and writes proofs and what processors read; a processor reads
that; the user of a sink URI writes the topics of users and nothing of ours; an operator reads.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

ANSWER_S: Final = 60.0
ITERATIONS: Final = 8192
RAW_PREFIX = "tidebus."
SINK_PREFIX = "tidebus.sink."
PROOFS_PREFIX = "tidebus.proofs."
PROLOGUE_PREFIX = "tidebus.prologue."
GROUP_PREFIX = "tidebus-"
_MAKE = (AclOperation.CREATE, AclOperation.ALTER_CONFIGS)
_READ = (AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
_WRITE = (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)


def admit(admin: Any, passwords: Mapping[str, str], bindings: Sequence[AclBinding]) -> None:
    """Create users by their passwords, or change those, and add rights. Giving them again changes nothing else.

    Raises:
        KafkaException: the cluster did not take them.
    """
    scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, ITERATIONS)
    users = [UserScramCredentialUpsertion(user, scram, password.encode()) for user, password in passwords.items()]
    asked = [*admin.alter_user_scram_credentials(users).values(), *admin.create_acls(list(bindings)).values()]
    for answer in asked:
        answer.result(ANSWER_S)


def acls() -> list[AclBinding]:
    """Return all bindings; users are the roles of :mod:`compose.stack.secure.folder`."""
    topic, group = ResourceType.TOPIC, ResourceType.GROUP
    return [
        *_allow("capture", topic, RAW_PREFIX, *_MAKE, *_READ, AclOperation.WRITE),
        *_allow("capture", topic, PROLOGUE_PREFIX, AclOperation.DELETE),
        *_deny("capture", topic, SINK_PREFIX),
        *_allow("sorter", topic, RAW_PREFIX, *_READ),
        *_allow("sorter", topic, SINK_PREFIX, *_MAKE, AclOperation.WRITE),
        *_allow("sorter", topic, PROOFS_PREFIX, *_MAKE, AclOperation.WRITE),
        *_allow("processor", topic, SINK_PREFIX, *_READ),
        *_allow("processor", group, GROUP_PREFIX, AclOperation.READ, AclOperation.DESCRIBE),
        *_allow("sink", topic, "", *_MAKE, *_WRITE),
        *_deny("sink", topic, RAW_PREFIX),
        *_allow("operator", topic, "", *_READ),
        *_allow("operator", group, "", AclOperation.READ, AclOperation.DESCRIBE),
    ]


def _allow(user: str, kind: ResourceType, prefix: str, *operations: AclOperation) -> list[AclBinding]:
    return [_binding(user, kind, prefix, operation, AclPermissionType.ALLOW) for operation in operations]


def _deny(user: str, kind: ResourceType, prefix: str) -> list[AclBinding]:
    return [_binding(user, kind, prefix, AclOperation.ALL, AclPermissionType.DENY)]


def _binding(
    user: str, kind: ResourceType, prefix: str, operation: AclOperation, permission: AclPermissionType
) -> AclBinding:
    """Return a binding for all names that begin with ``prefix``; empty: for all names."""
    pattern = ResourcePatternType.PREFIXED if prefix else ResourcePatternType.LITERAL
    return AclBinding(kind, prefix or "*", pattern, f"User:{user}", "*", operation, permission)
