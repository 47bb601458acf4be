"""What a recording holds and in which order it is played. Pure."""
