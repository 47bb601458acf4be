"""How a sorter's Spark lets nobody in: every connection is authenticated and encrypted, on a cluster's disks too.

What crosses between driver and executors holds rows, and in the tasks' closures the passwords and keys of sinks.

- ``local[n]``, YARN and Kubernetes: Spark draws a secret for each session by itself, and hands it on in ways that no
  command line shows. On Kubernetes that is the environment of executors' pods; where ``spark.authenticate.secret.file``
  names a file that is mounted in the driver's pod and theirs, each reads it there.
- A standalone cluster has one secret, that of its master and workers (``spark.authenticate.secret`` in their properties
  file); workers give it to executors in the environment. The driver takes it from the file that
  ``spark.authenticate.secret.file`` names, and without one it does not start: an open cluster must be asked for, by
  ``spark.authenticate=false``.

Settings whose names say that they are secret go to the JVM over Py4J's authenticated socket, never in its command line.
"""

import logging
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

from edges.secret_file import SECRET_BYTES_MIN, read_secret_text
from schemas.errors import Action, BusError

log = logging.getLogger(__name__)

AUTHENTICATE = "spark.authenticate"
SECRET = "spark.authenticate.secret"  # noqa: S105 # a setting's name
SECRET_FILE = "spark.authenticate.secret.file"  # noqa: S105
K8S_SECRET_FILES = (SECRET_FILE, "spark.authenticate.secret.driver.file")
"""On Kubernetes: the first for both sides; the second for the driver's, where executors have it elsewhere."""
# The cipher is Spark's default, AES in counter mode, which does not notice what is changed on the way: with AES/GCM,
# Spark 4.0.0 loses every second message of a connection (SPARK-56227).
_ON_EVERY_CONNECTION = {
    AUTHENTICATE: "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.authEngineVersion": "2",  # keys by HKDF; 1 is there for Spark 3
    "spark.network.sasl.serverAlwaysEncrypt": "true",
}
_ON_DISKS = {"spark.io.encryption.enabled": "true", "spark.io.encryption.keySizeBits": "256"}
"""Of executors: what they spill, shuffle and keep of broadcasts. In ``local[n]`` no row goes through the JVM, and it
took half as much again for each job."""
_SECRET_NAME = re.compile(r"secret|password|token|access[.]?key|jaas|credential", re.IGNORECASE)
"""Spark's own ``spark.redaction.regex``, and what Kafka's clients call theirs."""


class SparkSecretError(BusError):
    """The secret that a Spark cluster shares with its drivers is missing or is not kept secret."""

    code, action = "sorter.spark_secret", Action.STOP_CHANGEFEED


def security_settings(master: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for a session on ``master``: these and ``given``, which goes before.

    Raises:
        SparkSecretError: a standalone cluster's secret is not given, or in a way that shows it; or a secret is short.
        SecretFileModeError: others can read its file.
        ConfigError: its file cannot be read.
    """
    if SECRET in given:
        raise SparkSecretError(
            f"a secret in a command line is seen by everybody on the machine: write it to a file and name that by "
            f"{SECRET_FILE}",
            key=SECRET,
        )
    if given.get(AUTHENTICATE, "true").strip().lower() == "false":
        log.warning("spark runs without authentication, as asked for", extra={"master": master})
        return dict(given)
    settings = dict(_ON_EVERY_CONNECTION)
    if not master.startswith("local") or master.startswith("local-cluster"):
        settings |= _ON_DISKS
    settings |= given
    if master.startswith("spark://"):
        settings[SECRET] = _read_secret(master, settings.pop(SECRET_FILE, ""))
    elif master.startswith("k8s://"):
        for key in K8S_SECRET_FILES:
            if key in settings:  # Spark takes the file's bytes as they are, on both sides
                _checked_secret(Path(settings[key]), key)
    elif master.startswith("local-cluster"):
        settings[SECRET] = secrets.token_hex(32)
    return settings


def split_secrets(settings: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return what a command line may show, and what it may not."""
    hidden = {key: value for key, value in settings.items() if _SECRET_NAME.search(key) and not key.endswith(".file")}
    return {key: value for key, value in settings.items() if key not in hidden}, hidden


def _read_secret(master: str, file: str) -> str:
    if not file:
        raise SparkSecretError(
            f"a standalone cluster shares a secret with its drivers: name its file by {SECRET_FILE}, or ask for a "
            f"cluster that anybody can use by {AUTHENTICATE}=false",
            master=master,
            key=SECRET_FILE,
        )
    return _checked_secret(Path(file), SECRET_FILE)


def _checked_secret(path: Path, key: str) -> str:
    secret = read_secret_text(path, key).strip()
    if len(secret) < SECRET_BYTES_MIN or not secret.isprintable():
        raise SparkSecretError(f"the secret has at least {SECRET_BYTES_MIN} printable characters", file=path)
    return secret
