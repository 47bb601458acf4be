"""Rows to the branch of a lake table, by Spark."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from schemas.config.lake_rules import S3_FILE_IO
from schemas.masking import is_secret_name
from sorters.core.lake.columns import OP
from sorters.core.lake.errors import LakeJarMissingError
from sorters.run.lake.names import CATALOG, LakeName, quoted

_VIEW = "tidebus_changes"


class LakeRows:
    """A Spark session of a run's own, over the catalog; :meth:`close` must be called."""

    def __init__(self, spark: Any, options: Mapping[str, str], branch: str) -> None:
        """``spark`` is the process's session: settings and views are not shared, jobs are. ``options`` are Iceberg's
        properties of a catalog.

        Raises:
            LakeJarMissingError: its JVM has no Iceberg, or no client of S3 where the tables stand there.
        """
        self._session, self._branch, self._type = spark.newSession(), branch, options["type"]
        self._catalog: Any = None
        self._one_by_one = threading.Lock()
        """A view has one name, and jobs have all cores."""
        if not hasattr(self._session._jvm.org.apache.iceberg.CatalogUtil, "buildIcebergCatalog"):
            raise LakeJarMissingError(
                "spark has no iceberg: run `tidebus setup`, or name its jar in TIDEBUS_SPARK_JARS"
            )
        if options.get("io-impl") == S3_FILE_IO and not hasattr(
            self._session._jvm.software.amazon.awssdk.services.s3.S3Client, "builder"
        ):
            raise LakeJarMissingError(
                "spark has no client of s3: name iceberg-aws-bundle's jar of iceberg's version in TIDEBUS_SPARK_JARS"
            )
        if options["type"] == "jdbc":
            self._load_drivers()
        settings = {
            f"spark.sql.catalog.{CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
            **{f"spark.sql.catalog.{CATALOG}.{key}": value for key, value in options.items()},
            f"spark.sql.catalog.{CATALOG}.cache-enabled": "false",
            # Of a commit's rows, which are few: one file a commit and table, or as many as there are cores.
            "spark.sql.shuffle.partitions": str(max(1, int(spark.sparkContext.defaultParallelism))),
            "spark.sql.adaptive.enabled": "true",
            "spark.sql.timestampType": "TIMESTAMP_NTZ",
            "spark.sql.session.timeZone": "UTC",
            # Else `${env:…}` in a name of upstream's, in quotes too, becomes what this process's environment has.
            "spark.sql.variable.substitute": "false",
        }
        for key, value in settings.items():
            self._session.conf.set(key, value)
        self._secret = [f"spark.sql.catalog.{CATALOG}.{key}" for key in options if is_secret_name(key)]

    @property
    def session(self) -> Any:
        return self._session

    @property
    def may_transact(self) -> bool:
        """Whether its catalog is of the kind that may move several tables at once."""
        return self._type == "rest"

    def catalog(self) -> Any:
        """Return the session's catalog, as Iceberg has it."""
        if self._catalog is None:
            session = self._session._jsparkSession
            # Whose settings are read is a matter of the thread, not of the session that is asked.
            self._session._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session)
            self._catalog = session.sessionState().catalogManager().catalog(CATALOG).icebergCatalog()
            # It has read them. Spark writes the settings of a session into its event log with each job, as they are:
            # it redacts those of the whole process alone.
            for key in self._secret:
                self._session.conf.unset(key)
        return self._catalog

    def close(self) -> None:
        """Let the catalog's connections go, where it was asked for; the session must not be used after it."""
        catalog, self._catalog = self._catalog, None
        # A catalog of files holds nothing open, and Iceberg's would drop the locks of all others in this JVM.
        if catalog is not None and self._type != "hadoop":
            catalog.close()

    def _load_drivers(self) -> None:
        """Let the JDBC drivers among Spark's jars make themselves known: the JVM looks for them in its own alone."""
        java = self._session._jvm.java
        loader = java.lang.Thread.currentThread().getContextClassLoader()
        drivers = java.util.ServiceLoader.load(java.lang.Class.forName("java.sql.Driver"), loader).iterator()
        while drivers.hasNext():
            drivers.next()

    def append(self, name: LakeName, rows: pa.Table) -> None:
        """Add rows; in fields that are no column's they have NULL, which Spark must be given."""
        from pyspark.sql.functions import lit  # comes with the session

        target = self._target(name)
        with self._one_by_one:
            frame = self._session.createDataFrame(rows)
            for field in self._session.table(target).schema.fields:
                if field.name not in rows.column_names:
                    frame = frame.withColumn(field.name, lit(None).cast(field.dataType))
            frame.coalesce(1).writeTo(target).append()

    def merge(self, name: LakeName, rows: pa.Table, keys: Sequence[str]) -> None:
        """Write the last change of each key: delete, update or insert its row."""
        columns = [column for column in rows.column_names if column != OP]
        is_same = " AND ".join(f"target.{quoted(key)} = source.{quoted(key)}" for key in keys)
        new = ", ".join(f"{quoted(column)} = source.{quoted(column)}" for column in columns)
        names = ", ".join(map(quoted, columns))
        values = ", ".join(f"source.{quoted(column)}" for column in columns)
        text = (
            f"MERGE INTO {self._target(name)} AS target USING {_VIEW} AS source ON {is_same} "  # noqa: S608 # quoted
            f"WHEN MATCHED AND source.{OP} = 'D' THEN DELETE WHEN MATCHED THEN UPDATE SET {new} "
            f"WHEN NOT MATCHED AND source.{OP} <> 'D' THEN INSERT ({names}) VALUES ({values})"
        )
        with self._one_by_one:
            self._session.createDataFrame(rows).createOrReplaceTempView(_VIEW)
            self._session.sql(text)
            self._session.catalog.dropTempView(_VIEW)

    def fill(self, name: LakeName, column: str, value: object) -> None:
        """Give every row a value."""
        text = f"UPDATE {self._target(name)} SET {quoted(column)} = :value"  # noqa: S608 # quoted
        self._session.sql(text, args={"value": value})

    def _target(self, name: LakeName) -> str:
        parts = (CATALOG, *name.namespace, name.table, f"branch_{self._branch}")
        return ".".join(map(quoted, parts))
