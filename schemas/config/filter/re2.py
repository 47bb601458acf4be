"""RE2 syntax (Go's ``regexp``) in terms of Python's ``re``; what has no equal there is refused, never guessed.

Where both accept a text but mean something else, Python's form is written out: ``\\d``, ``\\w``, ``\\s`` and ``\\b``
are ASCII in RE2, ``$`` is the very end, and POSIX classes are classes. Refused: look-around, back-references,
possessive and atomic parts (RE2 has none either), and RE2's ``\\p{…}``, ``\\C`` and flag groups in mid-expression,
which ``re`` lacks.

What stays different: RE2 takes linear time, Python may take exponential time for an expression such as ``(a+)+$``.

Source: https://github.com/google/re2/wiki/Syntax
"""

import re

_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": "\\t\\n\\f\\r "}
_POSIX = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": "\\x00-\\x7F",
    "blank": "\\t ",
    "cntrl": "\\x00-\\x1F\\x7F",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": "!-/:-@\\[-`{-~",
    "space": "\\t\\n\\v\\f\\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
_ANCHORS = {"A": "\\A", "z": "\\Z", "b": "(?a:\\b)", "B": "(?!(?a:\\b))"}
_CONTROLS = frozenset("afnrtv")
_GROUP = re.compile(r"\(\?(?:P?<([A-Za-z_][A-Za-z0-9_]*)>|([ims]*)(?:-([ims]+))?([:)]))")
_HEX = re.compile(r"x(?:([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]{1,6})\})")
_REPEAT = re.compile(r"[*+?]|\{\d+(?:,\d*)?\}")
_REPEAT_MAX = 1000
"""RE2's own limit of a counted repetition."""


def translate(source: str) -> str:
    """Return the Python regular expression that matches what RE2's ``source`` matches.

    Raises:
        ValueError: RE2 refuses it, or Python has no equal.
    """
    try:
        text = _Translator(source).run()
        re.compile(text)
    except re.error as error:
        raise ValueError(f"regular expression `{source}` is illegal: {error.msg}") from None
    except ValueError as error:
        raise ValueError(f"regular expression `{source}` is illegal: {error}") from None
    return text


class _Translator:
    def __init__(self, source: str) -> None:
        self.source = source
        self.at = 0
        self.out: list[str] = []
        self.multiline = [False]
        """Whether ``m`` is on, per open group."""

    def run(self) -> str:
        while self.at < len(self.source):
            char = self.source[self.at]
            match char:
                case "\\":
                    self.out.append(self._escape())
                case "[":
                    self.out.append(self._class())
                case "(":
                    self._open()
                case ")":
                    if len(self.multiline) == 1:
                        raise ValueError("unexpected )")
                    self.multiline.pop()
                    self._copy(1)
                case "$":
                    self.out.append("$" if self.multiline[-1] else "\\Z")
                    self.at += 1
                case "*" | "+" | "?" | "{":
                    self._repeat()
                case _:
                    self._copy(1)
        # A lone flag group at the start holds to the end; it was opened as a group and is closed here.
        return "".join(self.out) + ")" * self._flag_groups

    _flag_groups = 0

    def _copy(self, count: int) -> None:
        self.out.append(self.source[self.at : self.at + count])
        self.at += count

    def _open(self) -> None:
        if not self.source.startswith("(?", self.at):
            self.multiline.append(self.multiline[-1])
            self._copy(1)
            return
        match = _GROUP.match(self.source, self.at)
        if not match:
            what = self.source[self.at : self.at + 4]
            raise ValueError(f"`{what}` is not supported (look-around and back-references are not RE2)")
        name, on, off, closing = match.groups()
        multiline = "m" in (on or "") or (self.multiline[-1] and "m" not in (off or ""))
        if name:
            self.out.append(f"(?P<{name}>")
        elif closing == ")":
            if len(self.out) > self._flag_groups or len(self.multiline) > 1:
                raise ValueError(f"`{match[0]}` must stand at the start here, or be written as `{match[0][:-1]}:…)`")
            self.out.append(match[0][:-1] + ":")
            self._flag_groups += 1
            self.multiline[-1] = multiline
            self.at = match.end()
            return
        else:
            self.out.append(match[0])
        self.multiline.append(multiline)
        self.at = match.end()

    def _repeat(self) -> None:
        match = _REPEAT.match(self.source, self.at)
        if not match:  # a "{" that counts nothing is itself, in RE2 and here
            self.out.append("\\{")
            self.at += 1
            return
        if match[0].startswith("{") and max(int(n) for n in re.findall(r"\d+", match[0])) > _REPEAT_MAX:
            raise ValueError(f"`{match[0]}` repeats more than {_REPEAT_MAX} times")
        self._copy(len(match[0]))
        if self.source[self.at : self.at + 1] == "?":
            self._copy(1)
        following = _REPEAT.match(self.source, self.at)
        if following:
            raise ValueError(f"`{match[0]}{following[0]}` repeats a repetition")

    def _escape(self) -> str:
        char = self.source[self.at + 1 : self.at + 2]
        if char == "Q":
            end = self.source.find("\\E", self.at)
            literal = self.source[self.at + 2 : end if end >= 0 else None]
            self.at = end + 2 if end >= 0 else len(self.source)
            return re.escape(literal)
        if char in _ANCHORS and char:
            self.at += 2
            return _ANCHORS[char]
        if char.lower() in _CLASSES and char:
            self.at += 2
            return f"[{'^' if char.isupper() else ''}{_CLASSES[char.lower()]}]"
        return self._literal_escape()

    def _literal_escape(self) -> str:
        """An escape that means one character, in or out of a class."""
        char = self.source[self.at + 1 : self.at + 2]
        if not char:
            raise ValueError("it ends in a backslash")
        if not char.isalnum() or not char.isascii():
            self.at += 2
            return re.escape(char)
        if char in _CONTROLS:
            self.at += 2
            return "\\" + char
        hexadecimal = _HEX.match(self.source, self.at + 1)
        if hexadecimal:
            code = int(hexadecimal[1] or hexadecimal[2], 16)
            if code > 0x10FFFF:
                raise ValueError(f"`\\{hexadecimal[0]}` is no character")
            self.at = hexadecimal.end()
            return re.escape(chr(code))
        octal = re.compile(r"0[0-7]{0,2}|[1-7][0-7]{2}").match(self.source, self.at + 1)
        if octal:
            self.at = octal.end()
            return re.escape(chr(int(octal[0], 8)))
        if char.isdecimal():
            raise ValueError(f"back-reference `\\{char}` is not RE2")
        raise ValueError(f"escape `\\{char}` is not supported")

    def _class(self) -> str:
        self.at += 1
        out = "["
        if self.source.startswith("^", self.at):
            out, self.at = "[^", self.at + 1
        first = True
        while True:
            char = self.source[self.at : self.at + 1]
            if not char:
                raise ValueError("a class has no closing ]")
            if char == "]" and not first:
                self.at += 1
                return out + "]"
            out += self._member(char)
            first = False

    def _member(self, char: str) -> str:
        if char == "[" and self.source.startswith("[:", self.at):
            end = self.source.find(":]", self.at)
            name = self.source[self.at + 2 : end] if end >= 0 else ""
            if name not in _POSIX:
                raise ValueError(f"POSIX class `[:{name}:]` is unknown or negated")
            self.at = end + 2
            return _POSIX[name]
        if char == "\\":
            following = self.source[self.at + 1 : self.at + 2]
            if following and following in _CLASSES:
                self.at += 2
                return _CLASSES[following]
            if following and following.lower() in _CLASSES:
                raise ValueError(f"`\\{following}` inside a class is not supported")
            return self._literal_escape()
        self.at += 1
        return char if char == "-" or char.isalnum() else "\\" + char
