"""Names of lake tables, and of their catalog."""

from dataclasses import dataclass

CATALOG = "lake"
"""As Spark calls it, and as the rows of a JDBC catalog name it."""


@dataclass(frozen=True, slots=True)
class LakeName:
    """Of a lake table: the parts of its namespace, and its own."""

    namespace: tuple[str, ...]
    table: str

    def __str__(self) -> str:
        return ".".join((*self.namespace, self.table))
