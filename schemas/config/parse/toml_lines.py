"""On which line each key of a TOML text stands; ``tomllib`` does not say.

A scanner for text that ``tomllib`` has accepted: it follows keys, headers, strings and brackets and knows nothing of
values. Source: TOML 1.0.0.
"""

import bisect
import tomllib

from schemas.config.parse.origin import Path

_BARE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_VALUE_END = frozenset(",]}\n#")


def key_lines(text: str) -> dict[Path, int]:
    """Return the line (from 1) of every key, table and list item; ``text`` is valid TOML."""
    return _Scanner(text).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        # A NUL ends the text, so that no look-ahead needs a bound; TOML allows none.
        self.text = text.replace("\r\n", "\n") + "\n\0"
        self.at = 0
        self.line_starts = [0, *(i + 1 for i, char in enumerate(self.text) if char == "\n")]
        self.lines: dict[Path, int] = {}
        self.array_sizes: dict[Path, int] = {}

    def scan(self) -> dict[Path, int]:
        table: Path = ()
        while True:
            self._skip_blanks()
            match self.text[self.at]:
                case "\0":
                    return self.lines
                case "[":
                    table = self._header()
                case _:
                    self._pair(table)

    def _header(self) -> Path:
        is_array = self.text.startswith("[[", self.at)
        line = self._line()
        self.at += 2 if is_array else 1
        *parents, last = self._key()
        self.at += 2 if is_array else 1
        path: Path = ()
        for part in parents:
            path = self._within((*path, part))
            self.lines.setdefault(path, line)
        path = (*path, last)
        if not is_array:
            path = self._within(path)
        else:
            self.lines.setdefault(path, line)
            size = self.array_sizes.get(path, 0)
            self.array_sizes[path] = size + 1
            path = (*path, size)
        self.lines.setdefault(path, line)
        return path

    def _within(self, path: Path) -> Path:
        """A header that goes through an array of tables means its latest table."""
        size = self.array_sizes.get(path, 0)
        return (*path, size - 1) if size else path

    def _pair(self, table: Path) -> None:
        path, line = table, self._line()
        for part in self._key():
            path = (*path, part)
            self.lines.setdefault(path, line)
        self.at += 1  # the "="
        self._value(path)

    def _key(self) -> list[str]:
        """Read ``a . "b" . c`` and stop at the "=" or "]" behind it."""
        parts = []
        while True:
            self._skip_spaces()
            start = self.at
            if self.text[start] in "\"'":
                self._string()
                parts.append(str(tomllib.loads("k = " + self.text[start : self.at])["k"]))
            else:
                while self.text[self.at] in _BARE:
                    self.at += 1
                parts.append(self.text[start : self.at])
            self._skip_spaces()
            if self.text[self.at] != ".":
                return parts
            self.at += 1

    def _value(self, path: Path) -> None:
        self._skip_spaces()
        match self.text[self.at]:
            case '"' | "'":
                self._string()
            case "{":
                self.at += 1
                while self._next_item("}"):
                    self._pair(path)
            case "[":
                self.at += 1
                index = 0
                while self._next_item("]"):
                    self.lines.setdefault((*path, index), self._line())
                    self._value((*path, index))
                    index += 1
            case _:
                while self.text[self.at] not in _VALUE_END:
                    self.at += 1

    def _next_item(self, closing: str) -> bool:
        """Skip blanks and a comma; at the closing bracket, step over it and return False."""
        self._skip_blanks()
        if self.text[self.at] == ",":
            self.at += 1
            self._skip_blanks()
        if self.text[self.at] != closing:
            return True
        self.at += 1
        return False

    def _string(self) -> None:
        quote = self.text[self.at]
        if self.text.startswith(quote * 3, self.at):
            self.at += 3
            while not self.text.startswith(quote * 3, self.at):
                self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
            # Up to two quotes may stand right before the closing three.
            while self.text[self.at] == quote:
                self.at += 1
            return
        self.at += 1
        while self.text[self.at] != quote:
            self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
        self.at += 1

    def _skip_spaces(self) -> None:
        while self.text[self.at] in " \t":
            self.at += 1

    def _skip_blanks(self) -> None:
        while self.text[self.at] in " \t\n#":
            if self.text[self.at] == "#":
                self.at = self.text.index("\n", self.at)
            self.at += 1

    def _line(self) -> int:
        return bisect.bisect_right(self.line_starts, self.at)
