"""What a capture was told: its options, and the zone of ``--tz``."""
