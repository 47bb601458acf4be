"""Names of lake tables, and of their catalog."""

from dataclasses import dataclass

CATALOG = "lake"
"""As Spark calls it, and as the rows of a JDBC catalog name it."""


@dataclass(frozen=True, slots=True)
class LakeName:
    """Of a lake table: the parts of its namespace, and its own. Its text is for people and tells any two names apart:
    a part that holds a dot is quoted as in Spark's SQL, ``lake.`shop.eu`.orders``.
    """

    namespace: tuple[str, ...]
    table: str

    def __str__(self) -> str:
        return ".".join(quoted(part) if "." in part or "`" in part else part for part in (*self.namespace, self.table))


def quoted(name: str) -> str:
    """Return a name as Spark's SQL takes any name."""
    return f"`{name.replace('`', '``')}`"
