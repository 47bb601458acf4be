"""Changes of the event feed into records of the raw log."""
