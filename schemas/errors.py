"""The root of every error of TideBus, and the three things that a supervisor can do about one.

A concrete error lives beside the code that raises it, subclasses :class:`BusError` and sets ``code`` (public, never
renamed: operators grep for it and the API returns it) and ``action``. Text: lower case, no full stop, what was seen and
what is allowed; ``fields`` say where (table, key, commit_ts, config key, line). Keys go in as hex. URIs are
masked in all of it, and what is very long (a key, what a server has said) is cut: an error is one readable line. A
message holds nothing of a user's, and which fields may :mod:`schemas.redaction` says.
"""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import ClassVar, Final

from schemas.masking import mask_text
from schemas.redaction import Redaction, Shown, redaction, shown_field


class Action(Enum):
    """What the supervisor does; it reads this and never the text."""

    RETRY = "retry"
    """The same call may work later; the caller backs off."""
    STOP_CHANGEFEED = "stop"
    """Only an operator can help: history is gone, a schema is refused, a config is wrong."""
    CRASH = "crash"
    """Our own bug: halt before wrong data gets downstream."""


TEXT_CHARS_MAX: Final = 4_000
"""Of a message, and of each text in its fields."""


class BusError(Exception):
    """Base of all errors that we raise on purpose."""

    code: ClassVar[str] = "bus.unknown"
    action: ClassVar[Action] = Action.CRASH
    is_of_settings: ClassVar[bool] = False
    """Its fields hold what an operator wrote, never what stands in rows."""

    def __init__(self, message: str, **fields: object) -> None:
        self.message = _for_people(message)
        super().__init__(self.message)
        self.fields = {name: _for_people(value) if isinstance(value, str) else value for name, value in fields.items()}

    def __str__(self) -> str:
        fields = self.fields.items()
        if not self.is_of_settings:
            fields = {name: shown_field(name, value) for name, value in fields}.items()
        where = ", ".join(f"{name}={shortened(str(value))}" for name, value in fields)
        text = mask_text(f"[{self.code}] {self.message}" + (f" ({where})" if where else ""))
        return text if redaction() is Redaction.OFF else Shown(text)

    def __reduce__(self) -> tuple[object, ...]:
        # Copies, and processes of our own that hand errors on, need the keyword fields too.
        return _rebuild, (type(self), self.message, self.fields)


def shortened(text: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    """Return a text, or its beginning and how long it was.

    >>> shortened("a" * 60, 3)
    'aaa… (60 characters)'
    """
    # With room for what is added here: a text that was shortened is not shortened again.
    return text if len(text) <= chars_max + 40 else f"{text[:chars_max]}… ({len(text)} characters)"


def _for_people(text: str) -> str:
    return shortened(mask_text(text))  # in this order: half a URI would be masked by half


def _rebuild(kind: type[BusError], message: str, fields: dict[str, object]) -> BusError:
    return kind(message, **fields)


def error_of_code(code: str, message: str, fields: dict[str, object]) -> BusError:
    """Return the error of a code, of the class that defines it; its module must have been imported.

    Raises:
        KeyError: no class has this code.
    """
    waiting: list[type[BusError]] = [BusError]
    while waiting:
        kind = waiting.pop()
        if kind.code == code and "code" in vars(kind):
            # Not the class's own constructor: some compose their message, and here it is given.
            error = kind.__new__(kind, message)
            error.message, error.fields = message, dict(fields)
            return error
        waiting += kind.__subclasses__()
    raise KeyError(code)


class InvariantBrokenError(BusError):
    """A state that cannot happen did: a bug of ours, or data that breaks the protocol's own promise."""

    code, action = "bus.invariant_broken", Action.CRASH


class UnexpectedError(BusError):
    """An exception that has no code: a bug of ours. ``fields`` say its kind, its text, and the line that raised it."""

    code, action = "bus.unexpected", Action.CRASH

    @classmethod
    def of(cls, error: BaseException) -> "UnexpectedError":
        """Return what tells of an exception, which becomes its cause."""
        frames = traceback.extract_tb(error.__traceback__)
        # The innermost line of our own: what a library was given says more than where in it that went wrong.
        ours = [frame for frame in frames if "site-packages" not in frame.filename] or frames
        where = {"at": "/".join(ours[-1].filename.split("/")[-3:]) + f":{ours[-1].lineno}"} if ours else {}
        made = cls("something unforeseen went wrong", kind=type(error).__name__, reason=str(error), **where)
        made.__cause__ = error
        return made


class ConfigError(BusError):
    """A setting is not allowed; ``fields`` name the key (and the line, where it came from a file)."""

    code, action = "bus.config", Action.STOP_CHANGEFEED
    is_of_settings = True


class CorruptDataError(BusError):
    """Bytes that do not decode by their own format; ``fields`` name table, key and commit_ts where known."""

    code, action = "bus.corrupt_data", Action.STOP_CHANGEFEED


@contextmanager
def decoding(**where: object) -> Iterator[None]:
    """Name in a :class:`CorruptDataError` of the block where its bytes stand: topic and offset, or a node's path."""
    try:
        yield
    except CorruptDataError as error:
        error.fields.update(where)
        raise
