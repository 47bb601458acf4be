"""How a file's tables become frozen dataclasses: durations, secrets, and where each setting came from."""
