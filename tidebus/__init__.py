"""What programs of others import: :mod:`tidebus.client` reads a changefeed's topics.

A thin front: everything behind it may move, these names do not.
"""
