"""As much of PD as a CDC client asks."""
