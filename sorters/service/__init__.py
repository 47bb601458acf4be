"""The sorter service: many changefeeds in one process, over one session, one Spark and one reading of each raw log."""
