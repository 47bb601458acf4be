"""What is wrong with single changefeeds, while that is so: said once, so that a look a second does not fill the log."""

import logging
from collections.abc import Container, Set

from schemas.errors import BusError
from schemas.nodes.sorter_service import FeedName


class FeedTroubles:
    """Of one kind, whose words are ``text``."""

    def __init__(self, log: logging.Logger, text: str) -> None:
        self._log, self._text = log, text
        self._said: dict[FeedName, str] = {}

    @property
    def names(self) -> Set[FeedName]:
        """The changefeeds that have it."""
        return self._said.keys()

    def tell(self, name: FeedName, error: BusError) -> None:
        """Say what is wrong with a changefeed, unless that was said last."""
        if self._said.get(name) != str(error):
            where = {"changefeed": name[1], "namespace": name[0], "code": error.code, "error": str(error)}
            self._log.error(self._text, extra=where)
        self._said[name] = str(error)

    def end(self, name: FeedName) -> None:
        """Nothing is wrong with a changefeed any more."""
        self._said.pop(name, None)

    def keep(self, names: Container[FeedName]) -> None:
        """Forget all other changefeeds."""
        self._said = {name: said for name, said in self._said.items() if name in names}
