"""Settings of a changefeed file whose values nobody is shown, by their types."""

import dataclasses
from collections.abc import Iterator
from typing import Any, get_args

from schemas.config.parse.origin import Path
from schemas.config.parse.secret import Secret
from schemas.config.parse.section import fields_by_key
from schemas.config.settings import ChangefeedFile


def secret_settings(section: Any = ChangefeedFile, path: Path = ()) -> Iterator[Path]:
    """Yield their paths."""
    for key, (_, hint) in fields_by_key(section).items():
        kinds = [kind for kind in (hint, *get_args(hint)) if isinstance(kind, type)]
        if any(issubclass(kind, Secret) for kind in kinds):
            yield (*path, key)
            continue
        for kind in filter(dataclasses.is_dataclass, kinds):
            yield from secret_settings(kind, (*path, key))
