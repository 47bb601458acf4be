"""As ``lag``, at 5,000 and 20,000 rows/s.

``python -m tests.bench.lag.lag_high`` takes the same options and prints the same fields.
"""

import sys

from tests.bench.lag.lag import main

if __name__ == "__main__":
    sys.exit(main(figure={"bench": "lag_high"}, description=__doc__, rows_per_s=(5000.0, 20000.0)))
