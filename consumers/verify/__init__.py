"""Compares what a source holds with what a changefeed's database holds, at one ts (``tidebus verify``)."""
