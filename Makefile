# `make run` and `make test` do all their set-up themselves; see README.md.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup complete installed run test test-real test-pure nightly check bench bench-report changelog lock clean

BIN := .venv/bin
# Spark's Python workers must find the same modules as the driver, whatever the shell exports.
unexport PYTHONPATH PYTHONHOME PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON SPARK_HOME
# A shell of a container may forbid it, and then each of a thousand processes compiles our sources and tests anew.
unexport PYTHONDONTWRITEBYTECODE
# Our own files are whole or absent; a half-made environment is made again.
.DELETE_ON_ERROR:

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1	\2/' | expand -t 20

setup:  ## environment in .venv, pinned dependencies, the project, jars in .cache
	@$(MAKE) --no-print-directory $(AT_ONCE) complete

# pip keeps one core, and Ivy, which is a jar of pyspark, mostly waits: pyspark is installed beside all else, then fetches.
AT_ONCE := -j 2
# Half of all lines. Python compiles what a process does import of them; mypy is native code.
RARELY_IMPORTED := PIL|fontTools|hive_metastore|matplotlib|moto|mpl_toolkits|mypyc?|playwright|pygments|setuptools
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check
LOCKED_SPARK := /^[a-z]/ { spark = /^(pyspark|py4j)==/ }

complete: .venv/.stamp-jars
	@:

installed: .venv/.stamp-project .venv/.stamp-fetched
	@:

.venv/.stamp-python:
	@python=; for name in python3.12 python3.11 python3.13 python3; do \
	  if $$name -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then python=$$name; break; fi; \
	done; \
	if [ -z "$$python" ]; then echo "TideBus needs Python 3.11, 3.12 or 3.13 on the PATH; none was found." >&2; exit 1; fi; \
	$$python -m venv .venv || { echo "$$python could not make an environment: install its venv module (Debian: python3-venv)." >&2; exit 1; }
	@touch $@

.venv/.stamp-spark: requirements.lock .venv/.stamp-python
	@awk '$(LOCKED_SPARK) spark' $< > .venv/spark.lock
	$(PIP_INSTALL) --no-warn-conflicts --require-hashes -r .venv/spark.lock
	@touch $@

.venv/.stamp-dependencies: requirements.lock .venv/.stamp-python
	@awk '$(LOCKED_SPARK) !spark' $< > .venv/dependencies.lock
	$(PIP_INSTALL) --no-warn-conflicts --no-compile --require-hashes -r .venv/dependencies.lock
	@$(BIN)/python -m compileall -qq -j 0 -x 'site-packages/(.*/tests?|$(RARELY_IMPORTED))/' .venv/lib || true  # some files are of another Python
	@touch $@

.venv/.stamp-project: pyproject.toml .venv/.stamp-dependencies
	$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

.venv/.stamp-fetched: compose/stack/ivy-stack.xml compose/stack/jars.py compose/stack/jars.sha256 .venv/.stamp-spark
	$(BIN)/python -m compose.stack.jars
	@touch $@

.venv/.stamp-jars: compose/stack/class_archives.py compose/stack/spark_home.py compose/stack/spark_files.py
.venv/.stamp-jars: sorters/spark/connector.py .venv/.stamp-fetched .venv/.stamp-project
	$(BIN)/tidebus setup
	@touch $@

run: setup  ## the whole bus on this machine until Ctrl-C; FOR=90s ends it by itself, SECURE=1 locks it down
	@exec $(BIN)/tidebus run $(if $(FOR),--for $(FOR)) $(if $(SECURE),--secure)

check: .venv/.stamp-project  ## ruff, mypy (strict, tests too), import contracts, unused names
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.unused_names

# Tests that start brokers and JVMs mostly wait, and pure ones fill the gaps, so both run at once. The former go file by
# file, the longest (e2e) begin first. The first also notes which classes JVMs load, which the other one does not need.
test:  ## all checks and all tests
	@$(MAKE) --no-print-directory $(AT_ONCE) installed
	@$(BIN)/python -m tests.lanes "$(MAKE) --no-print-directory test-real" "$(MAKE) --no-print-directory test-pure"

# What pyspark, py4j and servers in threads leave open, the collector meets in some later test: there it is shown, not an
# error. The pure tests hold our own code to closing what it opens.
UNRAISABLE := -W default::pytest.PytestUnraisableExceptionWarning

test-real: setup  ## tests on real processes: integration on Kafka, ZooKeeper, registry and Spark, kill -9 of the whole bus
	$(BIN)/pytest -q -n 3 --dist loadfile --no-loadscope-reorder --durations 10 $(UNRAISABLE) \
	  -m "integration or e2e" tests/e2e tests/integration tests/attacks

test-pure: check .venv/.stamp-fetched  ## all checks, and the tests that need no other process: unit, property, simulation
	$(BIN)/pytest -q -n 2 --dist worksteal -m 'not integration' --ignore tests/integration --ignore tests/e2e

# Tests of an hour run there: a dump of their stacks in the midst has ended the process (signal 11).
nightly: export PYTEST_ADDOPTS := -o faulthandler_timeout=0
nightly: setup  ## what takes too long for `make test`: SCHEDULES=10000 of each simulation, random rows, upgrades, kills of a Spark cluster
	NIGHTLY_SCHEDULES=$(or $(SCHEDULES),10000) SCHEDULING_SEEDS=$(or $(SCHEDULES),10000) \
	  CLUSTER_SEEDS=$(or $(SCHEDULES),10000) PROCESSOR_SEEDS=$(or $(SCHEDULES),10000) \
	  SERVICE_SEEDS=$(or $(SCHEDULES),10000) FRONTIER_SCHEDULES=$(or $(SCHEDULES),10000) IMAGE_SEEDS=$(or $(SCHEDULES),10000) \
	  PROLOGUE_SEEDS=$(or $(SCHEDULES),10000) IMAGED_SERVICE_SEEDS=$$(( $(or $(SCHEDULES),10000) / 10 )) \
	  $(BIN)/pytest -q -n 2 --timeout 7200 \
	  tests/simulation/test_feed_law.py tests/simulation/test_scheduling_law.py tests/simulation/test_cluster_law.py \
	  tests/simulation/test_processor_law.py tests/simulation/test_service_law.py tests/simulation/test_frontier_law.py \
	  tests/simulation/test_image_law.py tests/simulation/test_prologue_law.py tests/simulation/test_imaged_service_law.py
	NIGHTLY_EXAMPLES=1 $(BIN)/pytest -q -n 2 --timeout 7200 tests/property/rows/test_columnar_twins.py tests/property/rows/test_other_readers.py \
	  tests/property/rawlog/test_shared_pass.py
	NIGHTLY_DATABASE=1 NIGHTLY_RUN=1 $(BIN)/pytest -q $(UNRAISABLE) tests/e2e/test_database.py tests/e2e/test_run_command.py \
	  tests/integration/processors/test_apply_resync.py
	NIGHTLY_ISOLATION=1 $(BIN)/pytest -q $(UNRAISABLE) --timeout 1200 tests/integration/sorters/test_sorter_isolation.py
	NIGHTLY_CONSOLE=1 $(BIN)/pytest -q $(UNRAISABLE) --timeout 1200 tests/integration/api/test_console.py tests/integration/api/test_console_verbs.py
	NIGHTLY_CLUSTER=1 NIGHTLY_UPGRADE=1 $(BIN)/pytest -q $(UNRAISABLE) --timeout 1800 \
	  tests/integration/spark/test_service_executors.py tests/integration/spark/test_spark_attempts.py tests/integration/spark/test_spark_daemon.py \
	  tests/integration/spark/test_spark_submit.py tests/integration/spark/test_yarn_executors.py \
	  tests/integration/sorters/test_late_sorter.py tests/e2e/test_rolling_upgrade.py
	NIGHTLY_SOURCE=1 $(BIN)/pytest -q $(UNRAISABLE) --timeout 1800 \
	  tests/integration/spark/test_spark_source.py tests/integration/spark/test_source_cluster.py \
	  tests/e2e/test_locked_down_sinks.py
	NIGHTLY_IMAGES=1 $(BIN)/pytest -q $(UNRAISABLE) --timeout 1800 tests/e2e/test_table_image.py tests/e2e/test_prologue.py \
	  tests/e2e/test_damaged_record.py
	NIGHTLY_STATES=1 STATES_ROWS=1000000 STATES_ROWS_PER_S=2000 STATES_LOOKS=20 \
	  $(BIN)/pytest -q $(UNRAISABLE) --timeout 5400 tests/e2e/test_image_states.py
	NIGHTLY_LAKE=1 $(BIN)/pytest -q $(UNRAISABLE) --timeout 1800 tests/integration/lake/test_lake_sink.py \
	  tests/integration/lake/test_lake_images.py tests/integration/lake/test_lake_files.py tests/integration/lake/test_lake_maintenance.py \
	  tests/integration/lake/test_lake_catalogs.py tests/integration/lake/test_lake_transactions.py \
	  tests/integration/lake/test_lake_recording.py tests/integration/lake/test_lake_bank_recording.py \
	  tests/integration/lake/test_lake_resync.py tests/integration/lake/test_lake_creation.py tests/integration/lake/test_lake_passed_ddl.py \
	  tests/e2e/test_lake.py
	TIDEBUS_SECURE=1 NIGHTLY_DATABASE=1 $(BIN)/pytest -q $(UNRAISABLE) tests/e2e/test_kill_nine.py tests/e2e/test_database.py

bench: setup  ## figures as JSON lines and a plot in bench-out/, an hour; ONLY="lag puller …" runs some
	@$(BIN)/python -m tests.bench.run $(if $(ONLY),--only $(ONLY))

bench-report: setup  ## BENCH.md and its picture from the figures of the last `make bench`
	$(BIN)/python -m tests.bench.report

changelog: setup  ## what the fragments in changes/ come to; VERSION=0.2.0 moves them into CHANGELOG.md
	@$(BIN)/towncrier build $(if $(VERSION),--yes --version $(VERSION),--draft --version unreleased)

LOCKED := --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --quiet
EXTRAS := --extra s3 --extra azure --extra gcs

lock:  ## make the locks anew, of development, image and its build (needs uv); no address of any registry goes in
	printf 'hatchling\neditables\n' | uv pip compile pyproject.toml - --extra dev $(EXTRAS) $(LOCKED) --output-file requirements.lock
	uv pip compile pyproject.toml $(EXTRAS) --constraint requirements.lock $(LOCKED) --output-file compose/requirements.lock
	printf 'hatchling\nsetuptools\nwheel\npip\n' | uv pip compile - --constraint requirements.lock --allow-unsafe $(LOCKED) \
	  --output-file compose/requirements-build.lock

clean:  ## forget the environment, caches and outputs (fetched jars stay in .cache)
	rm -rf .venv build dist bench-out data .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
