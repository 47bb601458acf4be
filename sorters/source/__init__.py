"""The Spark source ``tidebus``: a table's changes as a DataFrame, read from the raw log, without a changefeed."""
