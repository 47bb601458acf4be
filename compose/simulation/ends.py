"""How a simulated process ends, if not by an error of the product."""


class KilledError(Exception):
    """The process that does this was killed meanwhile."""


class LeftError(Exception):
    """The process has handed over everything and ended."""
