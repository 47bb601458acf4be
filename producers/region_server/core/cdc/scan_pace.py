"""How fast scans may go: a budget of bytes a second, shared by all scans of a store, with at most a second saved up."""


class ScanPace:
    """TiKV limits what scans fetch (512 MiB/s) so that they leave room for everybody else. Times are seconds."""

    def __init__(self, bytes_per_s: float, now_s: float = 0.0) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at_s = now_s - 1.0
        """When all that was taken so far is paid for; a second before now means that a second's worth is saved up."""

    def take(self, size: int, now_s: float) -> float:
        """Take bytes and return the seconds to wait before the next ones; 0 within the budget.

        >>> pace = ScanPace(1000.0)
        >>> pace.take(1000, 0.0), pace.take(500, 0.0), pace.take(500, 10.0)
        (0.0, 0.5, 0.0)
        """
        self._free_at_s = max(self._free_at_s, now_s - 1.0) + size / self._bytes_per_s
        return max(0.0, self._free_at_s - now_s)
