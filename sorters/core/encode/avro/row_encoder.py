"""What Avro's two protocols have in common: how numbers are written, and DDL and watermarks in the test mode alone."""

from dataclasses import dataclass

from sorters.core.encode.avro.schema import AvroModes
from sorters.core.encode.wire.protocol import Partitions, RowEncoder


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroRowEncoder(RowEncoder):
    """Options are named as in the sink URI."""

    enable_tidb_extension: bool = False
    """What only TiDB knows of columns and changes stands in schemas and values."""
    avro_decimal_handling_mode: str = "precise"
    avro_bigint_unsigned_handling_mode: str = "long"
    avro_enable_watermark: bool = False
    """TiCDC's test mode: DDL and watermark messages, which Avro has none of."""
    glue: bool = False
    """Schema ids are the numbers of AWS Glue's UUIDs, and stand in messages as Glue's readers want them."""

    @property
    def ddl_partitions(self) -> Partitions:
        return Partitions.ALL if self._test_mode else Partitions.NONE

    @property
    def watermark_partitions(self) -> Partitions:
        return Partitions.ALL if self._test_mode else Partitions.NONE

    @property
    def _test_mode(self) -> bool:
        return self.enable_tidb_extension and self.avro_enable_watermark

    @property
    def _modes(self) -> AvroModes:
        return AvroModes(self.avro_decimal_handling_mode, self.avro_bigint_unsigned_handling_mode)
