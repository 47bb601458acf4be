"""A changefeed's topics for programs of others: rows in order with watermarks, repeats removed rightly.

>>> from tidebus.client import ChangeStream  # doctest: +SKIP
>>> with ChangeStream("127.0.0.1:9092", ["shop_orders"], group="billing") as stream:  # doctest: +SKIP
...     for batch in stream:
...         for transaction in batch.transactions():
...             apply(transaction)
...         stream.commit(batch)

:mod:`tidebus.conformance` tries a consumer of your own against streams that repeat, break off and go back.
"""

from consumers.client.changes import Change, ChangeBatch, Ddl, Row, Transaction
from consumers.client.errors import MessageError, NoPositionError, ProofLostError, StreamUnavailableError
from consumers.client.materialised import MaterialisedTable, TableProof
from consumers.client.stream import ChangeStream

__all__ = [
    "Change",
    "ChangeBatch",
    "ChangeStream",
    "Ddl",
    "MaterialisedTable",
    "MessageError",
    "NoPositionError",
    "ProofLostError",
    "Row",
    "StreamUnavailableError",
    "TableProof",
    "Transaction",
]
