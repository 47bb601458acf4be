"""canal in protobuf, and canal-json."""
