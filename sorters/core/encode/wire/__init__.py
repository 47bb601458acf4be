"""What all protocols are made of: :class:`~sorters.core.encode.wire.protocol.Encoder`, segments, varints and
names of types.
"""
