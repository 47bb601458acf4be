"""A sink that takes everything and keeps nothing, ``blackhole://``, as TiCDC has one for tests and benches.

Its protocol says which sink it stands for: with csv a storage, else Kafka.
"""

from typing import Final

BLACKHOLE_SCHEMES: Final = ("blackhole",)
BLACKHOLE_PROTOCOL: Final = "canal-json"
"""Where none is given: TiCDC's blackhole asks for none."""
BLACKHOLE_TOPIC: Final = "blackhole"
"""The default topic, where the URI has no path. It is in no Kafka."""
