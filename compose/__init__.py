"""Puts the pieces together: the tidebus command, the local stack, the demo run."""
