"""The id of RegionBatch's schema in the registry, which stands in each record of the raw log for readers of others.

Nothing of ours reads it, so a registry that is away stops no capture: an id that was told once is remembered, and asked
for again behind the capture's work, in case the registry has lost its schemas. A raw log that begins while no registry
answers has :data:`UNREGISTERED` in its first records.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final, Protocol

from edges.registry.access import RegistryAccess
from producers.errors import RegistryRefusedError
from producers.pull.landing.raw_log import register_region_batch
from schemas.errors import BusError

log = logging.getLogger(__name__)

UNREGISTERED: Final = 0
"""No registry gives this id: they count from 1."""
FIRST_TRY_S: Final = 5.0
"""How long a capture's start may wait for a registry."""
AGAIN_FIRST_S, AGAIN_MAX_S = 1.0, 60.0
"""Between two later tries; it doubles."""


class SchemaMemory(Protocol):
    """Remembers the id over a capture's life; from any thread."""

    def read(self) -> int | None:
        """Return what was written last for this registry and this schema; None: nothing.

        Raises:
            BusError: it cannot be read now.
        """
        ...

    def write(self, schema_id: int) -> None:
        """Remember an id.

        Raises:
            BusError: it cannot be written now.
        """
        ...


class NoMemory:
    """For pullers that are on their own."""

    def read(self) -> int | None:
        return None

    def write(self, schema_id: int) -> None:
        pass


NO_MEMORY: Final = NoMemory()


class BatchSchema:
    """Knows the id, now or later."""

    def __init__(self, registry: RegistryAccess, topic: str, memory: SchemaMemory) -> None:
        """Take the id that is remembered, or ask for it once.

        Raises:
            RegistryRefusedError: none is remembered, and the registry will not have the schema, or us.
        """
        self._registry, self._topic, self._memory = registry, topic, memory
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_confirmed = False
        remembered = self._remembered()
        self.schema_id = UNREGISTERED if remembered is None else remembered
        if remembered is None:
            try:
                self._ask(FIRST_TRY_S)
            except RegistryRefusedError:
                raise
            except BusError as error:
                log.warning(
                    "records go out without the id of their schema until the registry answers",
                    extra={"topic": topic, "code": error.code, "reason": str(error)},
                )

    def start(self, on_id: Callable[[int], None]) -> None:
        """Ask until the registry has told the id; ``on_id`` gets one that differs, in a thread of ours."""
        if not self._is_confirmed:
            self._thread = threading.Thread(target=self._run, args=(on_id,), name="batch-schema", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ask no more. A request that is under way is not waited for: nobody hears of its answer."""
        self._stopped.set()

    def _run(self, on_id: Callable[[int], None]) -> None:
        pause_s, before = AGAIN_FIRST_S, self.schema_id
        while not self._stopped.is_set():
            try:
                self._ask(FIRST_TRY_S)
            except BusError as error:
                log.warning(
                    "the registry has not told the id of the raw log's schema",
                    extra={"topic": self._topic, "code": error.code, "reason": str(error), "in_s": pause_s},
                )
                self._stopped.wait(pause_s)
                pause_s = min(2 * pause_s, AGAIN_MAX_S)
                continue
            if self.schema_id != before and not self._stopped.is_set():
                log.info("records have the id of their schema", extra={"topic": self._topic, "id": self.schema_id})
                on_id(self.schema_id)
            return

    def _remembered(self) -> int | None:
        """Ask the memory; one that cannot be read must not end a capture that could land."""
        try:
            return self._memory.read()
        except BusError as error:
            log.warning("the id of the raw log's schema cannot be looked up", extra={"code": error.code})
            return None

    def _ask(self, timeout_s: float) -> None:
        schema_id = register_region_batch(self._registry, self._topic, timeout_s)
        if not self._stopped.is_set():
            self.schema_id = schema_id
            self._memory.write(schema_id)
            self._is_confirmed = True
