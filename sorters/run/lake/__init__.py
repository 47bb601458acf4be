"""Lake tables: a changefeed written into Iceberg tables by Spark."""
