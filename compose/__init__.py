"""Puts the parts together: the tidebus command, the local stack, the demo run."""
