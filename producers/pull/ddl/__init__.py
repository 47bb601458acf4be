"""The schema snapshot and every finished DDL job of an upstream, into the ddl topic."""
