"""Python's own hook at its start, of the processes that Spark starts for this source."""

from sorters.source.python_start import begin

begin()
