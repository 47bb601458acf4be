"""What is started and stopped as a whole, as a context manager that leaves nothing behind."""

from abc import ABC, abstractmethod
from typing import Self


class Scoped(ABC):
    """``with`` starts it and stops it, also when it could not start completely."""

    @abstractmethod
    def start(self) -> None:
        """Start everything."""

    @abstractmethod
    def stop(self) -> None:
        """Stop what was started; nothing happens the second time."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
