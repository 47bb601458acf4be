"""The Spark job of one changefeed: cut at the frontier, mount, filter, dispatch, encode, order."""
