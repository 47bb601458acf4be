"""Processors of database sinks: from a changefeed's internal topic to MySQL or TiDB, each row exactly once."""
