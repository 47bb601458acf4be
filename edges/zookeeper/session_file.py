"""The session that a killed process has left: ended by the process that is started in its place.

ZooKeeper keeps a session for its timeout after the last sign of life, and with it the nodes by which others take the
dead for living: an election waits so long for whoever was killed. The process that comes next on the same machine, with
the same folder, can prove that nobody acts by that session any more: it gets the lock of a file that its predecessor
held, which the kernel lets go when a process ends, however it does. So it may end the session, whose id and password
stand in the file. What its predecessor had sent before may still be on the wire, as after any other end of a session.

Only of the machine's present boot, since locks of files on other machines are not always seen.
"""

import contextlib
import fcntl
import json
import logging
import os
from pathlib import Path
from typing import Final, Self

from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.client import ZooKeeperClient
from schemas.json_text import read_int, read_json, read_text

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 3.0
"""Half of the session timeout that may be saved: who does not answer so long has other troubles."""
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_FILE_BYTES_MAX: Final = 4096
_PASSWORD_BYTES: Final = 16


class SessionFile:
    """One process's; use as a context manager. Where the file cannot be had, all of it does nothing."""

    def __init__(self, path: Path) -> None:
        """Lock the file, which is made with its folder; another process that lives may have it."""
        self._path, self._file = path, -1
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            log.warning("sessions cannot be noted", extra={"file": str(path), "reason": str(error)})
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            log.warning("sessions are noted by another process", extra={"file": str(path), "reason": str(error)})
            os.close(file)
            return
        self._file = file

    @property
    def is_held(self) -> bool:
        """Whether this process has the file: no other capture that lives has the folder then."""
        return self._file >= 0

    def end_former(self, access: ZooKeeperAccess, timeout_s: float) -> bool:
        """End the session that is noted, if there is one and it stands; tell whether it did.

        Args:
            timeout_s: of sessions, as for :class:`~edges.zookeeper.session.Session`.
        """
        noted = self._noted()
        self.forget()
        if noted is None or noted["servers"] != access.servers:
            return False
        session = read_int(noted["session"], bits=63)
        client = access.client(timeout_s, client_id=(session, bytes.fromhex(read_text(noted["password"]))))
        try:
            client.start(timeout=CONNECT_TIMEOUT_S)
            stood = client.client_id is not None and client.client_id[0] == session
        except Exception as error:  # kazoo's, of sockets, of TLS: whoever connects next has the same, and says so
            log.info("former session is not ended", extra={"reason": repr(error)})
            return False
        finally:
            with contextlib.suppress(Exception):
                client.stop()
            with contextlib.suppress(Exception):
                client.close()
        if stood:
            log.info("session of the process that was here before is ended", extra={"session": hex(session)})
        return stood

    def note(self, access: ZooKeeperAccess, client: ZooKeeperClient) -> None:
        """Note the session of a connected KazooClient, for whoever comes after a kill."""
        boot, identity = _boot_id(), client.client_id
        if self._file < 0 or not boot or identity is None:
            return
        session, password = identity
        self._write({"boot": boot, "servers": access.servers, "session": session, "password": password.hex()})

    def forget(self) -> None:
        """Note that there is none."""
        self._write(None)

    def close(self) -> None:
        """Let go of the file; a session that is noted stays so."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _noted(self) -> dict[str, object] | None:
        if self._file < 0:
            return None
        text = os.pread(self._file, _FILE_BYTES_MAX, 0)
        if not text:
            return None
        try:
            noted = read_json(text)
            boot, password = read_text(noted["boot"], 100), bytes.fromhex(read_text(noted["password"], 100))
            read_int(noted["session"], bits=63)
            read_text(noted["servers"], 1000)
            if len(password) != _PASSWORD_BYTES:
                raise ValueError("it is no session's password")
        except (ValueError, KeyError, TypeError) as error:
            log.warning("noted session does not decode", extra={"file": str(self._path), "reason": repr(error)})
            return None
        return noted if boot and boot == _boot_id() else None

    def _write(self, noted: dict[str, object] | None) -> None:
        if self._file < 0:
            return
        try:
            os.ftruncate(self._file, 0)
            if noted is not None:
                os.pwrite(self._file, json.dumps(noted).encode(), 0)
        except OSError as error:
            log.warning("sessions cannot be noted", extra={"file": str(self._path), "reason": str(error)})


def _boot_id() -> str:
    """Return what tells this boot of this machine from all others; '': the system does not say."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
