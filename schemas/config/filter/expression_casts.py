"""The types that conditions of event filters cast to."""

from typing import Final

from schemas.config.filter.expression_nodes import Cast, Node
from schemas.config.filter.expression_tokens import ExpressionTextError, ExpressionToken

_LENGTH_MAX: Final = 65
"""Digits of a DECIMAL."""
_SCALE_MAX: Final = 30
_DECIMAL_DIGITS: Final = 10


def cast_to(at: int, word: str, operand: Node, kind: ExpressionToken, numbers: list[int]) -> Cast:
    """Return a cast to the type that a word names, with the numbers behind it; ``word``: CAST or CONVERT.

    Raises:
        ExpressionTextError: there is no such type, or none that we cast to.
    """
    match kind.word, numbers:
        case "SIGNED" | "UNSIGNED" | "BINARY" | "DOUBLE" | "DATE", []:
            return Cast(at, operand, kind.word)
        case "CHAR", [] | [_]:
            return Cast(at, operand, "CHAR", numbers[0] if numbers else None)
        case "DECIMAL", [] | [_] | [_, _]:
            digits, scale = (*numbers, *(_DECIMAL_DIGITS, 0)[len(numbers) :])
            if not scale <= digits <= _LENGTH_MAX or scale > _SCALE_MAX or not digits:
                raise ExpressionTextError(f"there is no DECIMAL({digits}, {scale})", kind.at)
            return Cast(at, operand, "DECIMAL", digits, scale)
        case _:
            raise ExpressionTextError(f"{word} as {kind.text} is not supported so", kind.at)
