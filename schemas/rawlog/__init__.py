"""The three topics of an upstream's raw log (``region-events``, ``ddl``, ``frontier``): names, records, codecs."""
