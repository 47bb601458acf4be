"""TiDB's key, row, schema and DDL encodings, decoded; scalar here, columnar twins beside."""
