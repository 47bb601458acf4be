"""A service's node in ZooKeeper: there for as long as its session lives."""

import os
import socket
import time
from dataclasses import replace
from importlib.metadata import version

from kazoo.exceptions import NodeExistsError, NoNodeError

from edges.zookeeper.session import Session
from schemas.errors import Action, BusError
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import ServiceInfo, SparkFigures, encode_service

WAIT_S = 0.5
FIGURES_S = 5.0
"""Between two tellings of what Spark has done, while nothing else has changed: each costs ZooKeeper a write."""


class ServiceIdTakenError(BusError):
    """Another sorter service of this id is registered, or was until a moment ago."""

    code, action = "sorter.service_taken", Action.RETRY


def service_info(service: str, master: str, dedicated: str) -> ServiceInfo:
    """Return who this process is."""
    return ServiceInfo(
        service=service,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=version("tidebus"),
        started_at_s=int(time.time()),
        master=master,
        dedicated=dedicated,
        knows_images=True,
        knows_prologues=True,
        knows_lives=True,
    )


class ServiceNode:
    """The node of one session."""

    def __init__(self, session: Session, paths: ServicePaths, info: ServiceInfo) -> None:
        """Register; one that a killed process of the same id has left goes with its session.

        Raises:
            ServiceIdTakenError: another process has the id, and keeps it.
            LeaseLostError, ZooKeeperError
        """
        self._session, self._path, self.info = session, paths.service(info.service), info
        self._figures_at_s = 0.0
        deadline = time.monotonic() + 2 * session.timeout_s
        with session.requests("registering a sorter service") as client:
            client.ensure_path(paths.services)
            client.ensure_path(paths.assignments)
            client.ensure_path(paths.progress)
            while True:
                try:
                    client.create(self._path, encode_service(info), ephemeral=True)
                    return
                except NodeExistsError as error:
                    if time.monotonic() > deadline:
                        raise ServiceIdTakenError(
                            "another sorter service has this id", service=info.service, path=self._path
                        ) from error
                time.sleep(WAIT_S)

    def tell(
        self, *, spark_ui: str | None = None, spark: SparkFigures | None = None, is_stopping: bool | None = None
    ) -> None:
        """Say what has changed, if anything has; figures alone are said each five seconds.

        Raises:
            LeaseLostError, ZooKeeperError
        """
        info = replace(
            self.info,
            spark_ui=self.info.spark_ui if spark_ui is None else spark_ui,
            is_stopping=self.info.is_stopping if is_stopping is None else is_stopping,
            spark=self.info.spark if spark is None else spark,
        )
        now_s = time.monotonic()
        if info == self.info or (replace(info, spark=self.info.spark) == self.info and now_s < self._figures_at_s):
            return
        self._figures_at_s = now_s + FIGURES_S
        with self._session.requests("telling of a sorter service") as client:
            try:
                client.set(self._path, encode_service(info))
            except NoNodeError:
                return  # the session is over, which is noticed elsewhere
        self.info = info
