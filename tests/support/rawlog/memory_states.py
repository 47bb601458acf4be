"""The topic of states in memory, compacted at once."""

from schemas.ids import TableId
from schemas.state_proof.carried import CarriedState, StateRecord, decode_state, encode_state, feed_key, state_key


class MemoryStates:
    """As :class:`sorters.run.proofs.state_log.StateLog`, by the records' own bytes."""

    def __init__(self) -> None:
        self.records: dict[bytes, bytes] = {}
        self.is_broken = False
        """Whether it takes nothing."""

    def read(self, name: tuple[str, str], life: str) -> tuple[dict[TableId, CarriedState], list[bytes]]:
        states: dict[TableId, CarriedState] = {}
        keys = [key for key in self.records if key.startswith(feed_key(name))]
        for record in (decode_state(self.records[key]) for key in keys):
            known = states.get(record.state.table_id)
            if record.life == life and (known is None or known.ts <= record.state.ts):
                states[record.state.table_id] = record.state
        return states, keys

    def write(self, records: list[StateRecord], gone: list[bytes]) -> None:
        if self.is_broken:
            raise ConnectionError("broken")
        for record in records:
            self.records.pop(state_key(record), None)
            self.records[state_key(record)] = encode_state(record)
        for key in gone:
            self.records.pop(key, None)
