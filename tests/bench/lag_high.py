"""As ``lag``, at 5,000 and 20,000 rows/s.

``python -m tests.bench.lag_high`` takes the same options and prints the same fields. Rows are made by their number, in
a process of its own with no store behind it (:mod:`tests.bench.row_flow`): at 20,000 rows/s the embedded cluster's
store takes most of a core, and rows waited there.
"""

import sys

from tests.bench.lag import main

if __name__ == "__main__":
    sys.exit(main(figure={"bench": "lag_high"}, description=__doc__, rows_per_s=(5000.0, 20000.0), flow=True))
