"""What is compared, and what a difference comes to: no connection is made here."""
