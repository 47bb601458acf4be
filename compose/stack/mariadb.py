"""A MariaDB of one's own: found on this machine or unpacked from the system's packages, on a private folder and port.

``mariadbd`` is taken from the PATH, or fetched once with the ordinary package client (``apt-get download``, 7 MB) and
unpacked into the cache folder: that needs no root, and nothing is installed. Where neither is possible,
:class:`MariaDbMissingError` says so, and tests skip with its text.
"""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pymysql

from compose.ports import LOOPBACK, free_ports, is_listening
from compose.stack.children import Child, Nursery
from compose.stack.errors import ChildError, MachineError
from compose.stack.jars import Say, cache_dir
from schemas.scoped import Scoped

PACKAGES = ("mariadb-server-core", "libaio1", "liburing2", "mariadb-common", "mysql-common")
"""The server and what it links to beyond what every Debian has. Names that a release does not know are left out."""
USER, PASSWORD = "tidebus", "tidebus"  # of a server that only this machine reaches
READY_S = 120.0
_FETCH_S = 300.0
_SYSTEM_TABLES = ("mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql")


class MariaDbMissingError(MachineError):
    """There is no MariaDB on this machine, and none can be fetched."""

    code = "bus.no_mariadb"


@dataclass(frozen=True, slots=True)
class MariadbProgram:
    """Where a server is."""

    server: Path
    share: Path
    """Its messages, character sets and system tables."""
    libraries: str = ""
    """``LD_LIBRARY_PATH`` of one that was unpacked; empty: the system's own."""

    @property
    def env(self) -> Mapping[str, str]:
        """Beside the process's own environment."""
        return {"LD_LIBRARY_PATH": self.libraries} if self.libraries else {}


def find_mariadb(say: Say = print) -> MariadbProgram:
    """Return a server, fetching it where needed.

    Raises:
        MariaDbMissingError: there is none to be had.
    """
    for name in ("mariadbd", "mysqld"):
        server = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
        share = server and next((s for s in _shares(Path(server).resolve()) if (s / _SYSTEM_TABLES[0]).exists()), None)
        if server and share:
            return MariadbProgram(Path(server), share)
    return _unpacked(say)


def _shares(server: Path) -> list[Path]:
    return [server.parents[1] / "share" / name for name in ("mysql", "mariadb")]


def _unpacked(say: Say) -> MariadbProgram:
    root = cache_dir() / "mariadb"
    if not (root / "usr/sbin/mariadbd").exists():
        root.parent.mkdir(parents=True, exist_ok=True)
        with (root.parent / ".mariadb.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (root / "usr/sbin/mariadbd").exists():
                say("fetching MariaDB (once)")
                _fetch(root)
    libraries = sorted({str(file.parent) for file in root.rglob("lib*.so.*")})
    return MariadbProgram(root / "usr/sbin/mariadbd", root / "usr/share/mysql", ":".join(libraries))


def _fetch(root: Path) -> None:
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise MariaDbMissingError("no mariadbd on the PATH, and no apt-get to fetch it with")
    fresh = root.with_name(f".mariadb.{os.getpid()}")
    debs = fresh / "debs"
    try:
        debs.mkdir(parents=True)
        # A new machine (CI) may never have read its package lists; only root may.
        if not _apt(["download", PACKAGES[0]], debs) and os.geteuid() == 0:
            _apt(["update"], debs)
        for package in PACKAGES:
            _apt(["download", package], debs)
        for deb in debs.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(deb), str(fresh)], check=True, timeout=_FETCH_S, capture_output=True)
        if not (fresh / "usr/sbin/mariadbd").exists():
            raise MariaDbMissingError("the system's package client could not download mariadb-server-core")
        shutil.rmtree(debs)
        shutil.rmtree(root, ignore_errors=True)
        fresh.rename(root)
    except (subprocess.SubprocessError, OSError) as error:
        raise MariaDbMissingError("mariadb-server-core could not be unpacked", reason=repr(error)) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _apt(arguments: list[str], folder: Path) -> bool:
    try:
        ran = subprocess.run(
            ["apt-get", "-q", *arguments], cwd=folder, capture_output=True, timeout=_FETCH_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return ran.returncode == 0


@dataclass(kw_only=True)
class LocalMariaDb(Scoped):
    """One server on loopback; a context manager. Starting again on the same folder finds the same tables."""

    data: Path
    say: Say = print
    nursery: Nursery = field(default_factory=Nursery)
    options: tuple[str, ...] = ()
    """More arguments for the server."""
    port: int = 0
    child: Child | None = field(default=None, init=False)

    def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            MariaDbMissingError: there is no server.
            ChildError: it ended, or was not ready in time.
        """
        assert self.child is None or not self.child.is_running(), "two servers would share one folder"
        program = find_mariadb(self.say)
        folder = self.data.resolve()
        # A server that starts deletes temporary tables in its folder for them, those of other servers, too.
        (folder / "temporary").mkdir(parents=True, exist_ok=True)
        if not (folder / "data" / "mysql").is_dir():
            _bootstrap(program, folder)
        if not self.port:
            (self.port,) = free_ports(1)
        command = [*_command(program, folder), f"--bind-address={LOOPBACK}", f"--port={self.port}"]
        command += [f"--socket={_socket(folder)}", f"--pid-file={folder}/pid", f"--init-file={folder}/users.sql"]
        # A restart must find what was committed, after a kill -9 too; what the machine's own crash loses is no matter.
        command += ["--skip-name-resolve", "--skip-log-bin", "--innodb-flush-log-at-trx-commit=2", "--debug-no-sync"]
        command += ["--innodb-fast-shutdown=2", "--innodb-buffer-pool-dump-at-shutdown=OFF"]
        command += self.options
        log = folder / "mariadb.log"
        self.child = self.nursery.start("mariadb", command, log=log, env={**os.environ, **program.env})
        self.child.wait_ready(self.ready, READY_S)

    def restart(self) -> None:
        """Start it again after it was killed, on its port."""
        assert self.child is not None
        self.child.start()
        self.child.wait_ready(self.ready, READY_S)

    def ready(self) -> bool:
        """Tell whether it takes statements."""
        if not is_listening(self.port):
            return False
        try:
            self.connect().close()
        except pymysql.MySQLError:
            return False
        return True

    def connect(
        self, user: str = USER, password: str = PASSWORD
    ) -> "pymysql.connections.Connection[pymysql.cursors.Cursor]":
        """Open a connection of its administrator, autocommitting."""
        return pymysql.connect(
            host=LOOPBACK,
            port=self.port,
            user=user,
            password=password,
            autocommit=True,
            connect_timeout=5,
            ssl_disabled=True,  # else each connection first reads all authorities of this machine
        )

    def uri(self, parameters: str = "", user: str = USER, password: str = PASSWORD) -> str:
        """Return a sink URI that leads here."""
        return f"mysql://{user}:{password}@{LOOPBACK}:{self.port}/{'?' if parameters else ''}{parameters}"

    def stop(self) -> None:
        """Stop it; nothing happens the second time."""
        self.nursery.stop()


def _command(program: MariadbProgram, folder: Path) -> list[str]:
    command = [str(program.server), "--no-defaults", f"--datadir={folder}/data", f"--lc-messages-dir={program.share}"]
    command += [f"--character-sets-dir={program.share}/charsets", "--character-set-server=utf8mb4"]
    command += [f"--tmpdir={folder}/temporary", "--max-allowed-packet=64M", "--innodb-buffer-pool-size=128M"]
    command += ["--innodb-log-file-size=64M", "--performance-schema=OFF", "--plugin-dir=/nonexistent"]
    return [*command, "--user=root"] if os.geteuid() == 0 else command


def _socket(folder: Path) -> str:
    """A unix socket's path has 108 bytes at most; the server changes into its data folder, so a short name does."""
    return "s"


def _bootstrap(program: MariadbProgram, folder: Path) -> None:
    """Make the system tables, as mariadb-install-db does, which needs more packages."""
    fresh = folder / "data.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    # A statement of the bootstrap ends with its line.
    sql = "CREATE DATABASE mysql;\nUSE mysql;\n" + "".join(
        (program.share / name).read_text() for name in _SYSTEM_TABLES
    )
    command = [part.replace(f"{folder}/data", str(fresh)) for part in _command(program, folder)]
    ran = subprocess.run(
        [*command, "--bootstrap", "--skip-log-bin", "--debug-no-sync"],
        input=sql.encode(),
        env={**os.environ, **program.env},
        capture_output=True,
        timeout=READY_S,
        check=False,
    )
    if ran.returncode != 0:
        raise ChildError("mariadb's data folder could not be made", said=ran.stderr.decode(errors="replace")[-2000:])
    (folder / "users.sql").write_text(
        "".join(
            f"CREATE USER IF NOT EXISTS '{USER}'@'{host}' IDENTIFIED BY '{PASSWORD}';\n"
            f"GRANT ALL ON *.* TO '{USER}'@'{host}' WITH GRANT OPTION;\n"
            for host in (LOOPBACK, "localhost")
        )
    )
    with suppress(FileNotFoundError):
        shutil.rmtree(folder / "data")
    fresh.rename(folder / "data")
