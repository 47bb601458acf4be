"""A spill store in memory that can be told to forget its blobs: for the matchers' tests."""

from producers.pull.core.match.spill import SpillCorruptError, SpillRefusedError


class MemorySpill:
    """Counts what it is asked, refuses beyond ``bytes_max``, and fails to give back what :attr:`damaged` names."""

    def __init__(self, bytes_max: int = 1 << 30) -> None:
        self.blobs: dict[int, bytes] = {}
        self.puts = 0
        self.gets: list[int] = []
        self.damaged: set[int] = set()
        self._bytes_max = bytes_max

    @property
    def stored_bytes(self) -> int:
        return sum(map(len, self.blobs.values()))

    def put(self, blob: bytes) -> int:
        if self.stored_bytes + len(blob) > self._bytes_max:
            raise SpillRefusedError("full")
        self.puts += 1
        self.blobs[self.puts] = blob
        return self.puts

    def get(self, address: object) -> bytes:
        assert isinstance(address, int)
        self.gets.append(address)
        if address in self.damaged:
            raise SpillCorruptError("damaged")
        return self.blobs[address]

    def drop(self, address: object) -> None:
        assert isinstance(address, int)
        del self.blobs[address]
