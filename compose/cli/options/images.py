"""Options of a capture for scans of table images: what it may take of each store, and whom it asks."""

import functools
from typing import Literal

import click

from compose.cli.options.kinds import Command


def image_options(command: Command) -> Command:
    """Add ``--image-…``; the command gets them as ``images``."""

    @functools.wraps(command)
    def wrapper(
        *,
        image_rows_per_second: int,
        image_bytes_per_second: int,
        image_read_from: Literal["leader", "follower", "stale"],
        image_resource_group: str,
        **others: object,
    ) -> object:
        from producers.pull.images.settings import ImageScanSettings

        settings = ImageScanSettings(
            rows_per_s=image_rows_per_second,
            bytes_per_s=image_bytes_per_second,
            read_from=image_read_from,
            resource_group=image_resource_group,
        )
        return command(**others, images=settings)

    for option in (
        click.option(
            "--image-resource-group",
            default="",
            metavar="NAME",
            help="TiDB's resource group whose quota these reads count towards; none: the default one.",
        ),
        click.option(
            "--image-read-from",
            type=click.Choice(["leader", "follower", "stale"]),
            default="leader",
            show_default=True,
            help="Which replica of a region is asked first.",
        ),
        click.option(
            "--image-bytes-per-second",
            type=click.IntRange(min=0),
            default=0,
            help="Bytes of keys and values that this capture's scans of table images may read of each store; "
            "several captures add up; 0: no bound.",
        ),
        click.option(
            "--image-rows-per-second",
            type=click.IntRange(min=0),
            default=0,
            help="Rows that this capture's scans of table images may read of each store; several captures add up; "
            "0: no bound.",
        ),
    ):
        wrapper = option(wrapper)
    return wrapper  # type: ignore[return-value]
