"""Pure logic of the sorters: columns in, columns out; no Spark, socket, clock or client library."""
