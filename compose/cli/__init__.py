"""The command ``tidebus``: errors of ours end as one clear line with their code, and as an exit status.

Exit status: 0 done, 1 it failed or a promise was broken, 2 the command line or a configuration is wrong, 130 Ctrl-C.
Commands import what they run inside themselves, so that ``tidebus --help`` needs no Arrow, Spark or gRPC.
"""

import errno
import faulthandler
import io
import logging
import os
import sys

import click

from compose.cli.changefeed import changefeed
from compose.cli.foresight_commands import explain, remount
from compose.cli.inspect_commands import decode, doctor, dry_run, errors, setup
from compose.cli.lake_commands import lake
from compose.cli.migrate_command import migrate
from compose.cli.operator_commands import configure_credentials, operator, tso, unsafe
from compose.cli.processor_command import processor
from compose.cli.proof_commands import proofs
from compose.cli.recover_command import recover
from compose.cli.sections import Section, SectionedGroup
from compose.cli.server_commands import capture, region_server, run
from compose.cli.simulate import simulate
from compose.cli.sorter_commands import executor_archive, sorter, sorters
from compose.cli.table_commands import table
from compose.cli.top_commands import completion, services, top
from compose.cli.verify_command import verify
from compose.echo import echo
from compose.leaving import Leaving
from compose.stack.errors import MachineError
from schemas.errors import BusError, ConfigError, UnexpectedError

log = logging.getLogger(__name__)

STATUS_FAILED = 1
STATUS_USAGE = 2
STATUS_INTERRUPTED = 130
_MACHINE_IS_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})
"""Errors that name no file and are no bug either."""


@click.group(cls=SectionedGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="tidebus", message="tidebus %(version)s")
def cli() -> None:
    """A change-event bus for TiDB: every change, in order, in Kafka.

    `tidebus COMMAND --help` tells the rest.
    """


cli.take(
    Section(
        "On this machine",
        (
            (run, "the whole bus, live, over a TiDB that is played"),
            (doctor, "what this machine lacks; can a TiDB be reached"),
            (setup, "fetch the jars that run, captures and sorters need"),
            (region_server, "PD and TiKV alone, from a recording or a generator"),
        ),
    ),
    Section(
        "Servers",
        (
            (capture, "pulls from TiDB; starts sorters and processors"),
            (sorters, "changefeeds' rows into topics; each capture starts one"),
            (sorter, "one changefeed's rows into topics, by hand"),
            (executor_archive, "what executors on other machines need, as one file"),
            (processor, "from topics into a database or files; captures start it"),
        ),
    ),
    Section(
        "Changefeeds and clusters",
        (
            (changefeed, "create, list, query, pause, resume, move, remove"),
            (operator, "the same and more, as `cdc cli` has it"),
            (table, "rows that were there before, for a running changefeed"),
            (lake, "Iceberg tables: compact them, let snapshots expire"),
            (top, "the bus at a glance: captures, lags, rates, errors"),
            (services, "sorter services, and which changefeeds each runs"),
            (proofs, "what a changefeed read and wrote, to keep and to check"),
            (errors, "what an error code means and what follows"),
            (tso, "a new ts of PD"),
            (configure_credentials, "a user and password for the API"),
        ),
    ),
    Section(
        "Before and after",
        (
            (dry_run, "every message that a changefeed would write, without Kafka"),
            (migrate, "a TiCDC's changefeeds: what becomes of them, and take them over"),
            (explain, "where each table's rows would go, and what that needs"),
            (decode, "any topic's records as JSON lines"),
            (remount, "write an interval of the raw log once more"),
            (recover, "finish a database whose TiDB is gone"),
            (verify, "whether a database holds what its TiDB held"),
            (unsafe, "repairs that can lose data where they are not needed"),
            (simulate, "clusters under every fault, in one process"),
            (completion, "a script for bash, zsh or fish"),
        ),
    ),
)


def main() -> None:
    """Run one command and exit with its status."""
    # A crash in a library of C leaves the stacks of all threads on standard error, which is where servers log.
    if sys.stderr is not None:  # `2>&-`
        faulthandler.enable()
    # A terminal or pipe that cannot show a letter shows its escape, as standard error does; the command goes on.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    # Before gRPC is imported: its own notes on connections that end, in no format of ours, would stand in our logs.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    leaving = Leaving()
    status = run_cli(sys.argv[1:])
    leaving.done(status)
    sys.exit(status)


def run_cli(arguments: list[str]) -> int:
    """Run one command; print an error of ours as one line on standard error, and return the exit status."""
    # Servers log by compose.logs; the other commands say what went wrong in one line, not in a client's warnings.
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        result = cli.main(arguments, prog_name="tidebus", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return STATUS_INTERRUPTED
    except BusError as error:
        echo(f"error: {one_line(str(error))}", err=True)
        return STATUS_USAGE if isinstance(error, ConfigError) else STATUS_FAILED
    except BrokenPipeError:
        # `tidebus decode | head`: the reader has seen enough. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        coded = (refusal(error) if isinstance(error, OSError) else None) or UnexpectedError.of(error)
        log.error("command failed", extra={"code": coded.code, "reason": str(coded)}, exc_info=error)
        echo(f"error: {one_line(str(coded))}", err=True)
        return STATUS_FAILED
    return result if isinstance(result, int) else 0


def refusal(error: OSError) -> MachineError | None:
    """Return what the machine refuses an operator; None: ``error`` is no matter of files, so where it arose counts."""
    if error.filename is None and error.errno not in _MACHINE_IS_FULL:
        return None
    where = {} if error.filename is None else {"path": error.filename}
    return MachineError(f"the machine refuses: {error.strerror}; check rights and room there", **where)


def one_line(text: str) -> str:
    """Return ``text`` on one line: an error's last words of a child process have several."""
    return " | ".join(line.strip() for line in text.splitlines() if line.strip())
