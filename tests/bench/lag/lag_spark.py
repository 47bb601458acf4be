"""As ``lag``, at 1,000 rows/s with every cut by Spark: the changefeed's ``run-cuts`` is ``spark``, on ``local[1]``.

``python -m tests.bench.lag.lag_spark`` takes the same options and prints the same fields; ``by_spark`` is Spark's share
of the rows.
"""

import sys

from tests.bench.lag.lag import main

if __name__ == "__main__":
    sys.exit(
        main(
            figure={"bench": "lag_spark"},
            description=__doc__,
            rows_per_s=(1000.0,),
            master="local[1]",
            run_cuts="spark",
        )
    )
