"""Where in ZooKeeper sorter services are kept (:mod:`schemas.nodes.sorter_service`)."""

from dataclasses import dataclass

from schemas.nodes.changefeed import ZkPaths


@dataclass(frozen=True, slots=True)
class ServicePaths:
    """Paths of sorter services under one cluster's root."""

    paths: ZkPaths

    @property
    def services(self) -> str:
        return f"{self.paths.root}/services"

    @property
    def assignments(self) -> str:
        return f"{self.paths.root}/assignments"

    @property
    def progress(self) -> str:
        return f"{self.paths.root}/progress"

    def service(self, service: str) -> str:
        return f"{self.services}/{service}"

    def assignment(self, service: str) -> str:
        return f"{self.assignments}/{service}"

    @property
    def figures(self) -> str:
        return f"{self.paths.root}/figures"

    def service_progress(self, service: str) -> str:
        return f"{self.progress}/{service}"

    def service_figures(self, service: str) -> str:
        return f"{self.figures}/{service}"

    def entries(self, service: str, number: int) -> str:
        return f"{self.progress}/{service}/{number}"

    def entry_figures(self, service: str, number: int) -> str:
        return f"{self.figures}/{service}/{number}"
