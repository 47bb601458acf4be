"""A backlog as a Spark streaming query, and the folder in which that query keeps its checkpoint."""
