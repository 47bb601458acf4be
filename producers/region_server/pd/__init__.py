"""The part of PD that a CDC client asks."""
