"""Says in the forms of rows that the keys of their table may be noted at a database, for a resync.

It hangs on the cut and not on the table, so it is put in behind the encoder, form by form.
"""

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from schemas.ids import TableId, Ts
from schemas.sink.sql_rows import decode_form, encode_form
from sorters.core.records.order import OUTPUT_SCHEMA, OutputRecords, make_records


def with_notes(records: OutputRecords, noted: Mapping[tuple[str, str, Ts], TableId]) -> OutputRecords:
    """Return the records of rows with forms that name the notes of their tables.

    Args:
        records: of a database's encoder.
        noted: :func:`sorters.core.feed.resync_events.noted_names`.
    """
    keys = records.column("key").combine_chunks().dictionary_encode()
    said_before = keys.dictionary.to_pylist()
    forms = [_with_notes(form, noted) for form in said_before]
    if forms == said_before:
        return records
    said = pa.DictionaryArray.from_arrays(keys.indices, pa.array(forms, pa.binary())).cast(pa.binary())
    return make_records([said if name == "key" else records.column(name) for name in OUTPUT_SCHEMA.names])


def _with_notes(key: bytes, noted: Mapping[tuple[str, str, Ts], TableId]) -> bytes:
    form = decode_form(key)
    table_id = noted.get((form.schema, form.table, form.version))
    return key if table_id is None or form.is_keyless else encode_form(replace(form, notes=table_id))
