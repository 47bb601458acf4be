"""As ``lag``, at 1,000 rows/s with every cut by the executors of a Spark standalone cluster: a master and two workers
of one core each, as processes on this machine, authenticated and encrypted.

``python -m tests.bench.lag.lag_cluster`` takes the same options and prints the same fields; ``by_spark`` is the
executors' share of the rows, ``cluster_cores`` what master, workers, executors and their Python took.
"""

import sys

from tests.bench.lag.lag import main

if __name__ == "__main__":
    sys.exit(main(figure={"bench": "lag_cluster"}, description=__doc__, rows_per_s=(1000.0,), workers=2))
