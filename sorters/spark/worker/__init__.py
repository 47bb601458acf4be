"""A Python worker of Spark: the daemon that forks it, how it does a task, what it keeps from one task to the next."""
