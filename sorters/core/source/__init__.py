"""What Spark reads of the raw log: which changes a batch has, and its rows as Arrow columns of Spark's types."""
