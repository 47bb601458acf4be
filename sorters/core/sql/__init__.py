"""DDL statements, read and restored as TiDB's parser does, and the events that go downstream."""
