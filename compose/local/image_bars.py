"""Table images under way, as lines for `tidebus run`: of each changefeed that waits for some, and its begun tables."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from rich.text import Text

from schemas.errors import CorruptDataError

FEEDS_MAX: Final = 3
TABLES_MAX: Final = 4
"""Of each changefeed: the picture must not scroll."""
BAR: Final = 20
"""Characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableBar:
    """A table that is begun."""

    name: str
    rows: int
    done_share: float | None
    eta_s: float | None
    is_paused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageBar:
    """A changefeed's images, as its upstream's owner says."""

    changefeed_id: str
    state: str
    reason: str
    rows: int
    tables_done: int
    tables_left: int
    eta_s: float | None
    tables: tuple[TableBar, ...]

    @classmethod
    def read(cls, shown: Mapping[str, Any]) -> Self:
        """Read one item of ``images`` of the upstream's node.

        Raises:
            CorruptDataError: it is of a version that says it otherwise.
        """
        try:
            return cls(
                changefeed_id=str(shown["id"]),
                state=str(shown["state"]),
                reason=str(shown.get("reason", "")),
                rows=int(shown["rows"]),
                tables_done=int(shown["tables_done"]),
                tables_left=int(shown["tables_left"]),
                eta_s=_number(shown["eta_s"]),
                tables=tuple(_table(item) for item in shown["tables"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptDataError("progress of table images does not decode", reason=repr(error)) from error


def table_text(shown: Mapping[str, Any]) -> str:
    """Return what a begun table is called: with its partition, where it is one."""
    partition = f" ({shown['partition']})" if shown.get("partition") else ""
    return f"{shown['name'] or shown['table_id']}{partition}"


def _table(shown: Mapping[str, Any]) -> TableBar:
    return TableBar(
        name=table_text(shown),
        rows=int(shown["rows"]),
        done_share=_number(shown["done_share"]),
        eta_s=_number(shown["eta_s"]),
        is_paused=bool(shown.get("is_paused", False)),
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def image_bars(images: Sequence[ImageBar], width: int) -> Iterator[Text]:
    """Yield lines for a terminal of so many columns."""
    for image in images[:FEEDS_MAX]:
        yield _line(Text(image_text(image), style="cyan"), width)
        for table in image.tables[:TABLES_MAX]:
            share = f"{_bar(table.done_share)} {table.done_share:4.0%}" if table.done_share is not None else " " * BAR
            paused = ", paused" if table.is_paused else ""
            yield _line(Text(f"  {share}  {table.name}: {table.rows:,} rows{_to_go(table.eta_s)}{paused}"), width)


def image_text(image: ImageBar) -> str:
    """Return a changefeed's images in one line."""
    tables = image.tables_done + image.tables_left
    reason = f"; {image.reason}" if image.reason else ""
    return (
        f"images of {image.changefeed_id}, {image.state}: {image.rows:,} rows, "
        f"{image.tables_done:,} of {tables:,} tables whole{_to_go(image.eta_s)}{reason}"
    )


def _bar(share: float) -> str:
    full = int(BAR * min(max(share, 0.0), 1.0))
    return "█" * full + "░" * (BAR - full)


def _to_go(eta_s: float | None) -> str:
    return "" if eta_s is None else f", {eta_s:,.0f} s to go"


def _line(text: Text, width: int) -> Text:
    text.truncate(width, overflow="ellipsis")
    text.no_wrap = True
    return text
