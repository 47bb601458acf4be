"""What a changefeed would do, told beforehand: from recordings, or of the tables that a cluster has now."""
