"""A cut as a Spark job, a backlog as a Spark query, and the session that both share."""
