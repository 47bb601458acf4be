"""Contracts and codecs that every other package stands on: ids, errors, raw-log records, TiDB's encodings, config.

Nothing here opens a socket, reads a clock or starts a thread; nothing here imports another package of ours.
"""
