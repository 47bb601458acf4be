"""The whole bus on one machine: the stack, a region server and a capture, each as its own process.

`tidebus run` and the end-to-end tests share it. The processes are the very commands of a real deployment, started as
``python -m compose.cli …``; a part that is given by address is not started. Sorters are the capture's own children.
"""

import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from compose.changefeeds import create_changefeed
from compose.local.supervisor import Supervisor
from compose.ports import LOOPBACK, free_ports, is_listening
from compose.stack.children import TIDEBUS, Child, Nursery
from compose.stack.jars import Say, spark_jars
from compose.stack.local import Addresses, LocalStack
from compose.stack.secure.folder import StackSecrets
from consumers.control.changefeeds.store import ChangefeedRequest
from edges.kafka.access import KafkaAccess
from edges.secrets import KEY_FILE_VARIABLE
from producers.tls import TlsSettings
from schemas.ids import UpstreamId
from schemas.nodes.changefeed import CLUSTER_DEFAULT, ChangefeedInfo, ZkPaths
from schemas.scoped import Scoped

REGION_SERVER = "region server"
REGION_SERVER_READY_S = 60.0
NO_PARAMETERS: Mapping[str, str] = MappingProxyType({})
_PROXIES: Final = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
CAPTURE_STOP_S = 40.0
"""A capture hands over, and waits some seconds for its sorters; one that is killed leaves them to its watchdog."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusOptions:
    """What is to be started; an empty address means: here."""

    data_dir: Path
    given: Addresses = field(default_factory=Addresses)
    pd: str = ""
    tls: TlsSettings = field(default_factory=TlsSettings)
    secrets: StackSecrets | None = None
    """Lock everything down that is started here (:mod:`compose.stack.secure`): parts, region server and captures."""
    cluster_secret_file: Path | None = None
    """With ``secrets``: captures prove to each other that they know this one, and none of them shows a certificate."""
    is_lasting: bool = False
    """See :class:`~compose.stack.local.LocalStack`."""
    upstream: UpstreamId = UpstreamId("local")
    cluster: str = CLUSTER_DEFAULT
    recording: Path | None = None
    """What the region server replays; None: nothing."""
    speed: float = 0.0
    """Of the replay: 1 as recorded, 0 as fast as the clients read."""
    generate_rows_per_s: float = 0.0
    """What the generator writes after the recording; 0: nothing."""
    region_server_arguments: tuple[str, ...] = ()
    api_addr: str = f"{LOOPBACK}:0"
    """The address of the first capture's HTTP API; others take free ports."""
    master: str = "local[1]"
    """The master of each sorter's Spark."""
    capture_arguments: tuple[str, ...] = ()
    retry_first_s: float = 1.0
    """After a changefeed's error: here all parts come back in seconds."""


def spare_loopback(environment: MutableMapping[str, str]) -> None:
    """Let no proxy that the environment names stand between this process, and what it starts, and this machine."""
    if any(environment.get(name) for name in _PROXIES):
        hosts = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
        for name in ("no_proxy", "NO_PROXY"):
            environment[name] = ",".join(filter(None, (hosts, LOOPBACK, "localhost")))


class LocalBus(Scoped):
    """Starts and watches everything; a context manager that leaves no process behind."""

    def __init__(self, options: BusOptions, say: Say = print) -> None:
        self.options = options
        self.nursery = Nursery()
        self.supervisor = Supervisor(say)
        self.processes: dict[str, Child] = {}
        self.pd = options.pd
        self._say = say
        self.secrets = options.secrets
        given = options.given if self.secrets is None else _as_operator(options.given, self.secrets)
        self.tls = options.tls if self.secrets is None else _captures_tls(self.secrets, options.cluster_secret_file)
        """What captures show to PD and TiKV, to each other and to the clients of their API."""
        self._stack = LocalStack(
            data=options.data_dir / "stack",
            given=given,
            secrets=self.secrets,
            is_lasting=options.is_lasting,
            say=say,
            nursery=self.nursery,
        )

    @property
    def addresses(self) -> Addresses:
        """Where Kafka, ZooKeeper and the registry are."""
        return self._stack.addresses

    @property
    def sink_parameters(self) -> Mapping[str, str]:
        """What a sink URI of this bus's Kafka needs to get in."""
        return NO_PARAMETERS if self.secrets is None else self.secrets.sink_parameters()

    @property
    def zk_paths(self) -> ZkPaths:
        """Where this bus keeps its nodes."""
        return ZkPaths(self.options.cluster)

    @property
    def logs(self) -> Path:
        """Folder of the processes' logs."""
        return self.options.data_dir.resolve() / "logs"

    def start(self) -> None:
        """Start the stack, the region server and the capture.

        Raises:
            ChildError, JarsError, MachineError
        """
        spark_jars(self._say)  # for the sorters, which fetch nothing
        spare_loopback(os.environ)
        if self.secrets is not None:
            # For this process and for all that it starts; edges/secrets.py says why by the environment.
            os.environ[KEY_FILE_VARIABLE] = str(self.secrets.secret_key())
        region_server = None if self.pd else self._begin_region_server()
        self._stack.start()
        for part in self._stack.children.values():
            self.supervisor.add(part, restart=False)
        if region_server is not None:
            self._await_region_server(region_server)
        self.start_capture("capture", "--addr", self.options.api_addr)
        if not self.options.api_addr.endswith(":0"):
            scheme = "https" if self.tls.cert_path else "http"
            self._say(f"the API is at {scheme}://{self.options.api_addr}, documented under /docs")

    def _begin_region_server(self) -> Child:
        options = self.options
        (port,) = free_ports(1)
        arguments = ["region-server", "--pd-port", str(port), *options.region_server_arguments]
        if options.recording is not None:
            arguments += ["--recording", str(options.recording), "--speed", str(options.speed)]
        if options.generate_rows_per_s:
            arguments += ["--generate", str(options.generate_rows_per_s)]
        if self.secrets is not None:
            pair = self.secrets.servers["region-server"]
            arguments += ["--ca", self.secrets.ca_path, "--cert", pair.cert, "--key", pair.key]
        self.pd = f"{LOOPBACK}:{port}"
        return self._start(REGION_SERVER, arguments, restart=False)

    def _await_region_server(self, child: Child) -> None:
        port = int(self.pd.rsplit(":", 1)[1])
        child.wait_ready(lambda: is_listening(port), REGION_SERVER_READY_S)
        self._say(f"region server is ready: PD at {self.pd}")

    def start_capture(self, name: str, *more: str) -> Child:
        """Start a capture; several with different names form one cluster."""
        where, secrets = self.addresses, self.secrets
        registry = where.registry_access
        kafka = where.kafka_access
        if secrets is not None:
            kafka = KafkaAccess.read(where.kafka, secrets.kafka_config("capture"))
            if self.options.cluster_secret_file is None:
                more = ("--mtls", *more)
            else:
                more = ("--cluster-secret-file", str(self.options.cluster_secret_file), *more)
            for role in ("sorter", "processor"):
                more = (f"--{role}-kafka-config", str(secrets.kafka_config(role)), *more)
        arguments = [
            "capture",
            "--addr",
            f"{LOOPBACK}:0",
            "--tz",
            "UTC",
            "--pd",
            self.pd,
            *kafka.arguments(),
            *where.zookeeper_access.arguments(),
            *registry.arguments(),
        ]
        arguments += [*_tls_arguments(self.tls), *self._names()]
        arguments += ["--data-dir", str(self.options.data_dir.resolve() / "captures" / name)]
        arguments += ["--sorter-master", self.options.master, "--sorter-retry-first", str(self.options.retry_first_s)]
        arguments += self.options.capture_arguments
        return self._start(name, [*arguments, *more], restart=True, env=registry.environment())

    def create_changefeed(self, request: ChangefeedRequest) -> ChangefeedInfo:
        """Create a changefeed; the owner gives it to a sorter service.

        Raises:
            BusError: see :func:`compose.changefeeds.create_changefeed`.
        """
        return create_changefeed(
            self.addresses.kafka_access, self.addresses.zookeeper_access, self.options.cluster, request
        )

    def part(self, name: str) -> Child:
        """Return one of the stack's parts that were started here: kafka, zookeeper or registry."""
        return self._stack.children[name]

    def restart_part(self, name: str) -> None:
        """Start a part of the stack again on its port and data, and wait until it answers."""
        self.part(name).start()
        self._stack.wait_ready(name)

    def tick(self) -> None:
        """Let the supervisor look; call it a few times a second.

        Raises:
            ChildError: a part that cannot be restarted has died.
        """
        self.supervisor.tick()

    def stop(self) -> None:
        """Stop everything: captures, with their sorters, then the parts that they lean on, last started first."""
        for name, process in self.processes.items():
            if name != REGION_SERVER:
                process.terminate()
        for name, process in self.processes.items():
            if name != REGION_SERVER:
                process.stop(CAPTURE_STOP_S)
        self.nursery.stop()
        if self.secrets is not None:
            os.environ.pop(KEY_FILE_VARIABLE, None)

    def _names(self) -> list[str]:
        return ["--cluster", self.options.cluster, "--upstream", self.options.upstream]

    def _start(self, name: str, arguments: list[str], *, restart: bool, env: Mapping[str, str] | None = None) -> Child:
        log = self.logs / f"{name.replace(' ', '-')}.log"
        child = self.nursery.start(name, [*TIDEBUS, *arguments], log=log, env=env)
        self.processes[name] = child
        self.supervisor.add(child, restart=restart)
        return child


def _as_operator(given: Addresses, secrets: StackSecrets) -> Addresses:
    """Return how this process, which only looks and creates changefeeds, gets in."""
    return replace(
        given,
        kafka_config=given.kafka_config or str(secrets.kafka_config("operator")),
        zookeeper_config=given.zookeeper_config or str(secrets.zookeeper_config()),
        schema_registry_config=given.schema_registry_config or str(secrets.registry_config()),
    )


def _captures_tls(secrets: StackSecrets, cluster_secret_file: Path | None) -> TlsSettings:
    if cluster_secret_file is not None:
        return TlsSettings(ca_path=secrets.ca_path)
    pair = secrets.captures
    return TlsSettings(ca_path=secrets.ca_path, cert_path=pair.cert, key_path=pair.key)


def _tls_arguments(tls: TlsSettings) -> list[str]:
    given = {"--ca": tls.ca_path, "--cert": tls.cert_path, "--key": tls.key_path}
    given["--cert-allowed-cn"] = ",".join(tls.allowed_cn)
    return [part for flag, value in given.items() if value for part in (flag, value)]
