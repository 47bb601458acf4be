"""Which settings let nobody into a sorter's Spark, and which of them no command line shows."""

from collections.abc import Mapping
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from schemas.errors import Action, BusError
from sorters.log.failures import SparkJarsMissingError, SparkStartError
from sorters.spark import session
from sorters.spark.addresses import DriverHostError, driver_host
from sorters.spark.connector import SPARK_JARS_ENV, SUBMITTED_ENV
from sorters.spark.security import SparkSecretError, security_settings, split_secrets
from sorters.spark.session import SparkOnDemand, create_session

SECRET = "0123456789abcdef-shared"


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.touch(mode=0o600)
    file.write_text(f"{SECRET}\n")
    return file


@pytest.mark.parametrize("master", ["local", "local[2]", "yarn", "k8s://https://host:6443", "local-cluster[1,1,512]"])
def test_spark_authenticates_and_encrypts_whatever_its_master(master: str) -> None:
    settings = security_settings(master, {"spark.executor.memory": "1g"})
    assert settings["spark.authenticate"] == settings["spark.network.crypto.enabled"] == "true"
    assert settings["spark.executor.memory"] == "1g"
    # On one machine no row goes through the JVM's disks.
    assert settings.get("spark.io.encryption.enabled") == (None if master in ("local", "local[2]") else "true")


def test_spark_without_a_clusters_secret_starts_only_if_that_is_asked_for() -> None:
    with pytest.raises(SparkSecretError, match=r"spark\.authenticate\.secret\.file") as refused:
        security_settings("spark://host:7077", {})
    assert refused.value.action is Action.STOP_CHANGEFEED
    assert security_settings("spark://host:7077", {"spark.authenticate": "false"}) == {"spark.authenticate": "false"}


def test_spark_takes_a_clusters_secret_from_its_file_and_shows_it_to_no_command_line(secret_file: Path) -> None:
    settings = security_settings("spark://host:7077", {"spark.authenticate.secret.file": str(secret_file)})
    assert settings["spark.authenticate.secret"] == SECRET
    assert "spark.authenticate.secret.file" not in settings
    shown, hidden = split_secrets(settings)
    assert hidden == {"spark.authenticate.secret": SECRET}
    assert SECRET not in str(shown) and shown["spark.authenticate"] == "true"


def test_spark_of_a_cluster_within_one_process_draws_another_secret_each_time() -> None:
    first, second = (security_settings("local-cluster[1,1,512]", {})["spark.authenticate.secret"] for _ in range(2))
    assert len(first) == len(second) == 64 and first != second


def test_spark_secret_in_a_setting_is_refused_and_not_repeated() -> None:
    with pytest.raises(SparkSecretError) as refused:
        security_settings("spark://host:7077", {"spark.authenticate.secret": SECRET})
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [("short", 0o600, "at least 16"), (None, 0, "readable")],
)
def test_spark_secret_file_that_is_no_secret_is_refused(
    tmp_path: Path, text: str | None, mode: int, words: str
) -> None:
    file = tmp_path / "secret"
    if text is not None:
        file.write_text(text)
        file.chmod(mode)
    with pytest.raises(BusError, match=words):
        security_settings("spark://host:7077", {"spark.authenticate.secret.file": str(file)})


@pytest.mark.parametrize(
    "name",
    [
        "spark.hadoop.fs.s3a.secret.key",
        "spark.hadoop.fs.s3a.access.key",
        "spark.ssl.keyStorePassword",
        "spark.kubernetes.authenticate.submission.oauthToken",
        "spark.kafka.clusters.x.sasl.jaas.config",
    ],
)
def test_spark_setting_whose_name_says_that_it_is_secret_is_in_no_command_line(name: str) -> None:
    assert split_secrets({name: "x", "spark.master": "yarn"}) == ({"spark.master": "yarn"}, {name: "x"})


def test_spark_without_its_connectors_jars_is_refused_and_fetches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SPARK_JARS_ENV, raising=False)
    spark = SparkOnDemand(lambda: create_session("local[1]", "x", tmp_path))
    with pytest.raises(SparkJarsMissingError, match="tidebus setup") as refused:
        spark.get()
    assert refused.value.action is Action.STOP_CHANGEFEED
    assert not list(tmp_path.iterdir()), "no JVM was started"


@pytest.mark.parametrize("master", ["local[2]", "spark://127.0.0.1:7077", "k8s://https://127.0.0.1:6443"])
def test_driver_of_spark_is_found_by_the_way_to_its_master(master: str) -> None:
    """Also where the UI was bound to loopback before, by ourselves."""
    assert driver_host(master, {}) == driver_host(master, {"SPARK_LOCAL_IP": "127.0.0.1"}) == "127.0.0.1"


def test_driver_of_spark_has_the_address_that_the_environment_names() -> None:
    assert driver_host("yarn", {"SPARK_LOCAL_IP": "10.1.2.3"}) == "10.1.2.3"


def test_driver_of_spark_without_a_way_to_its_master_is_refused_by_name() -> None:
    with pytest.raises(DriverHostError, match=r"spark\.driver\.host") as refused:
        driver_host("spark://no-such-host.invalid:7077", {})
    assert refused.value.action is Action.STOP_CHANGEFEED


def test_spark_on_kubernetes_takes_its_secret_from_a_mounted_file_that_is_one(
    secret_file: Path, tmp_path: Path
) -> None:
    given = {"spark.authenticate.secret.file": str(secret_file)}
    settings = security_settings("k8s://https://host:6443", given)
    assert settings["spark.authenticate.secret.file"] == str(secret_file), "executors read it, too"
    shown, hidden = split_secrets(settings)
    assert hidden == {} and SECRET not in str(shown)
    short = tmp_path / "short"
    short.touch(mode=0o600)
    short.write_text("0123456789")
    for key in ("spark.authenticate.secret.file", "spark.authenticate.secret.driver.file"):
        with pytest.raises(SparkSecretError, match="at least 16"):
            security_settings("k8s://https://host:6443", {key: str(short)})
    secret_file.chmod(0o644)
    with pytest.raises(BusError, match=r"secrets\.file_mode"):
        security_settings("k8s://https://host:6443", given)


@pytest.mark.parametrize(
    ("environment", "shown"),
    [({}, True), ({SUBMITTED_ENV: "1"}, False), ({SUBMITTED_ENV: "1", "SPARK_LOCAL_IP": "127.0.0.1"}, True)],
)
def test_each_session_in_a_jvm_of_spark_submits_has_a_ui_only_where_its_address_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], shown: bool
) -> None:
    begun: list[Mapping[str, str]] = []

    def begin(settings: Mapping[str, str]) -> MagicMock:
        begun.append(settings)
        return MagicMock()

    monkeypatch.setattr(session, "_session", begin)
    monkeypatch.setenv(SPARK_JARS_ENV, "/jars/kafka.jar")
    monkeypatch.setenv("PYSPARK_PYTHON", "python3")
    for variable in (SUBMITTED_ENV, "SPARK_LOCAL_IP", "SPARK_PUBLIC_DNS"):
        monkeypatch.setenv(variable, "")  # so that all is as it was afterwards
        monkeypatch.delenv(variable)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    for _ in range(2):  # the second one after a cluster has left the first without executors
        create_session("local[1]", "x", tmp_path, conf={"spark.ui.enabled": "true"})
    assert [settings["spark.ui.enabled"] == "true" for settings in begun] == [shown, shown]


def test_session_whose_jvm_does_not_start_says_so_by_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Mapping[str, str]) -> MagicMock:
        raise RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.")

    monkeypatch.setattr(session, "_session", refuse)
    monkeypatch.setenv(SPARK_JARS_ENV, "/jars/kafka.jar")
    for variable in (SUBMITTED_ENV, "SPARK_LOCAL_IP", "SPARK_PUBLIC_DNS", "PYSPARK_PYTHON"):
        monkeypatch.setenv(variable, "")
    with pytest.raises(SparkStartError, match=r"\[sorter\.spark_start\].*JAVA_GATEWAY_EXITED"):
        create_session("local[1]", "x", tmp_path)
