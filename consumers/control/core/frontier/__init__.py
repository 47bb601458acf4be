"""The owner's arithmetic: tables to pull, spans, held tables, and the next frontier record."""
