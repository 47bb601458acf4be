"""PREWRITE and COMMIT rows in, committed row changes out, beyond the quota by way of the disk."""
