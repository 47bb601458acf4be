"""Every file with a secret is refused by one rule and one code, whoever reads it, when others can read it too."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from compose.deployment import kafka_user
from consumers.control.api.access.credentials import read_credentials
from edges.kafka.access import KafkaAccess
from edges.registry.access import RegistryAccess
from edges.secret_file import SecretFileModeError, check_secret_mode, read_secret_lines
from edges.secrets import Keyring
from edges.zookeeper.access import ZooKeeperAccess
from schemas.errors import Action, ConfigError
from sorters.spark.security import SECRET_FILE, security_settings

SECRET = "0123456789abcdef-shared"
SCRAM = f"security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\nsasl.username=u\nsasl.password={SECRET}\n"
READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "--kafka-config": (SCRAM, lambda file: KafkaAccess.read("k:1", file)),
    "--zookeeper-config": (
        f"digest.username=u\ndigest.password={SECRET}\n",
        lambda file: ZooKeeperAccess.read("z:1", file),
    ),
    "--schema-registry-config": (
        f"basic.auth.user.info=u:{SECRET}\n",
        lambda file: RegistryAccess.read("https://r:1", file),
    ),
    "--admin": (SCRAM, lambda file: kafka_user.read_settings(file, "--admin")),
    "secret-key-file": (SECRET, Keyring.read),
    "cluster-secret-file": (SECRET, lambda file: read_secret_lines(file, "cluster-secret-file")),
    SECRET_FILE: (SECRET, lambda file: security_settings("spark://h:7077", {SECRET_FILE: str(file)})),
    "credentials": (f'[users]\nana = "{SECRET}"\n', read_credentials),
}


@pytest.mark.parametrize("key", READERS)
def test_file_with_a_secret_that_others_reach_is_refused_by_every_reader_and_shows_nothing(
    tmp_path: Path, key: str
) -> None:
    text, read = READERS[key]
    file = tmp_path / "file"
    file.write_text(text)
    for mode in (0o644, 0o640, 0o604, 0o620, 0o601, 0o660):
        file.chmod(mode)
        with pytest.raises(SecretFileModeError) as refused:
            read(file)
        assert (refused.value.code, refused.value.action) == ("secrets.file_mode", Action.STOP_CHANGEFEED)
        assert refused.value.fields == {"key": key, "file": file, "mode": f"{mode:o}"}
        assert SECRET not in str(refused.value)
    for mode in (0o600, 0o400):
        file.chmod(mode)
        read(file)


@pytest.mark.parametrize(
    ("kind", "mode", "is_own", "is_refused"),
    [
        (stat.S_IFREG, 0o440, False, False),  # as Kubernetes and Docker mount it for a group of the process
        (stat.S_IFREG, 0o440, True, True),
        (stat.S_IFREG, 0o460, False, True),
        (stat.S_IFREG, 0o444, False, True),
        (stat.S_IFIFO, 0o666, True, False),  # <(command) of a shell
    ],
)
def test_group_may_read_a_secret_that_belongs_to_another_user(
    kind: int, mode: int, is_own: bool, is_refused: bool
) -> None:
    owner = os.geteuid() if is_own else os.geteuid() + 1
    status = os.stat_result((kind | mode, 0, 0, 1, owner, 0, 0, 0, 0, 0))
    try:
        check_secret_mode(status, Path("/run/secret"), "secret-key-file")
    except SecretFileModeError:
        assert is_refused
    else:
        assert not is_refused


def test_secret_file_without_an_end_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="too large"):
        read_secret_lines(Path("/dev/zero"), "secret-key-file")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff" * 32)
    binary.chmod(0o600)
    with pytest.raises(ConfigError, match="no text"):
        read_secret_lines(binary, "secret-key-file")
