"""Storage sinks: a changefeed's rows as files in a local folder, S3, GCS or Azure, in TiCDC's layout."""
