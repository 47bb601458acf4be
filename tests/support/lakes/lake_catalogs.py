"""Catalogs of lake tables for tests: a database file by JDBC, for tables in a folder or on a server that speaks S3, and
Iceberg's own server of REST catalogs, on loopback.

The server is what Iceberg's tests run (``RESTCatalogServlet`` over a JDBC catalog); Py4J starts it, as its own main
listens on every address.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from pyiceberg.catalog import load_catalog
from pyiceberg.table import StaticTable, Table

from compose.ports import LOOPBACK
from compose.stack.jars import pyspark_jars
from compose.stack.java import find_java
from schemas.config.lake_rules import S3_FILE_IO
from tests.support.lakes.lake import Lake
from tests.support.processes.ivy_jars import fetched_jars

_IVY_FILE = Path(__file__).with_name("ivy-lake-catalogs.xml")
S3_KEY, S3_SECRET = "ak", "lake-secret"


def catalog_jars(conf: str) -> list[Path]:
    """Return the jars of ``drivers``, ``s3``, ``server``, or ``s3-server`` beside both, fetching them where needed, or
    skip the test.
    """
    return fetched_jars(f"lake-catalogs-{conf}", _IVY_FILE, conf, "catalogs of lake tables")


@dataclass(frozen=True)
class JdbcLake(Lake):
    """Tables that a SQLite database lists."""

    def metadata(self, schema: str, table: str) -> Path | None:
        """Return the metadata file that the catalog names; None: there is no table."""
        location = self.location(schema, table)
        return None if location is None else Path(location.removeprefix("file:"))

    def location(self, schema: str, table: str) -> str | None:
        """Return where that file is, as the catalog says it."""
        query = "SELECT metadata_location FROM iceberg_tables WHERE table_namespace = ? AND table_name = ?"
        with sqlite3.connect(f"{self.folder}.db") as database:
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'iceberg_tables'").fetchone():
                return None
            row = database.execute(query, (schema, table)).fetchone()
        return None if row is None else str(row[0])


@dataclass(frozen=True)
class S3Lake(JdbcLake):
    """Tables that a SQLite database lists, and that stand in a bucket."""

    endpoint: str = ""

    def table(self, schema: str, table: str) -> StaticTable:
        """Open a table as it is now, with the S3 client of pyiceberg's."""
        location = self.location(schema, table)
        assert location is not None, f"{schema}.{table} is not in the lake"
        return StaticTable.from_metadata(location, properties=_by_pyiceberg(self.endpoint))


def _by_pyiceberg(endpoint: str) -> dict[str, str]:
    keys = {"s3.access-key-id": S3_KEY, "s3.secret-access-key": S3_SECRET}
    return {"s3.endpoint": endpoint, "s3.region": "us-east-1", **keys}


@dataclass(frozen=True)
class RestLake(Lake):
    """Tables that a REST catalog gives out."""

    address: str = ""
    touch: Callable[[str, str], None] = lambda _schema, _table: None
    """Moves main of a table, as a writer does who knows nothing of watermarks."""

    def metadata(self, schema: str, table: str) -> Path | None:
        """Return the metadata file that the catalog names."""
        return Path(self._load(schema, table).metadata_location.removeprefix("file:"))

    def _load(self, schema: str, table: str) -> Table:
        return load_catalog("lake", type="rest", uri=self.address).load_table((schema, table))


@dataclass(frozen=True)
class RestS3Lake(RestLake):
    """Tables that a REST catalog gives out, and that stand in a bucket."""

    endpoint: str = ""

    def table(self, schema: str, table: str) -> StaticTable:
        """Open a table as it is now, with the S3 client of pyiceberg's."""
        catalog = load_catalog("lake", type="rest", uri=self.address, **_by_pyiceberg(self.endpoint))
        location = catalog.load_table((schema, table)).metadata_location
        return StaticTable.from_metadata(location, properties=_by_pyiceberg(self.endpoint))


@contextmanager
def rest_server(folder: Path, s3: str = "") -> Iterator[RestLake]:
    """Run a REST catalog whose tables stand in ``folder``, or in the bucket ``lake`` of the server at ``s3``."""
    jars = [*catalog_jars("server"), *pyspark_jars().glob("hadoop-client-*.jar"), *pyspark_jars().glob("py4j-*.jar")]
    jars += pyspark_jars().glob("commons-logging-*.jar")
    if s3:
        jars += [*catalog_jars("s3-server"), *catalog_jars("s3")]
    port, token = launch_gateway(
        classpath=":".join(map(str, jars)), die_on_exit=True, java_path=str(find_java()), enable_auth=True
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True))
    try:
        catalog = _catalog(gateway.jvm, folder, s3)
        server = _started(gateway.jvm, catalog)

        def touch(schema: str, table: str) -> None:
            identifier = gateway.jvm.org.apache.iceberg.catalog.TableIdentifier.parse(f"{schema}.{table}")
            catalog.loadTable(identifier).newAppend().commit()

        address = f"http://{LOOPBACK}:{server.getURI().getPort()}"
        yield RestS3Lake(folder, address, touch, s3) if s3 else RestLake(folder, address, touch)
        server.stop()
    finally:
        gateway.shutdown()


def _catalog(jvm: Any, folder: Path, s3: str) -> Any:
    options = {"type": "jdbc", "uri": f"jdbc:sqlite:{folder}-rest.db", "warehouse": str(folder)}
    if s3:
        options |= {"warehouse": "s3://lake/tables", "io-impl": S3_FILE_IO, "client.region": "us-east-1"}
        options |= {"s3.endpoint": s3, "s3.path-style-access": "true"}
        options |= {"s3.access-key-id": S3_KEY, "s3.secret-access-key": S3_SECRET}
    return jvm.org.apache.iceberg.CatalogUtil.buildIcebergCatalog(
        "server", options, jvm.org.apache.hadoop.conf.Configuration()
    )


def _started(jvm: Any, catalog: Any) -> Any:
    servlet = jvm.org.apache.iceberg.rest.RESTCatalogServlet(jvm.org.apache.iceberg.rest.RESTCatalogAdapter(catalog))
    jetty = jvm.org.eclipse.jetty
    handler = jetty.servlet.ServletContextHandler()
    handler.addServlet(jetty.servlet.ServletHolder(servlet), "/*")
    server = jetty.server.Server(jvm.java.net.InetSocketAddress(LOOPBACK, 0))
    server.setHandler(handler)
    server.start()
    return server
