"""What a processor of a database sink decides, without a connection: order, repeats, batches, statements, barriers."""
