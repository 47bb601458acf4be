"""The local stack locked down: TLS, users and minimal rights; certificates and passwords are made on the spot."""
