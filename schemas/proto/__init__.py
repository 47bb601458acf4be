"""TiKV's and PD's wire messages (generated from the .proto files here; the subset that a CDC client needs)."""
