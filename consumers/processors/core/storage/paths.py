"""Where files of TiCDC's storage sink stand, below the sink's root.

    {schema}/{table}/{table version}/[{partition id}/][{date}/]CDC{number}.{csv|json}
    {table id}/{table version}/[{date}/]CDC…    with use-table-id-as-path
    …the same folder…/meta/CDC.index          the last data file's name
    metadata                                  {"checkpoint-ts": …}

Names that could leave their place in a path, or share it, are written as :mod:`schemas.sink.file_names` says.

Source: pingcap/tiflow ``pkg/sink/cloudstorage/path.go``; the reference's section 7.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from schemas.errors import CorruptDataError
from schemas.sink.file_names import path_name, schema_path_name
from schemas.sink.storage_rows import FolderForm

DateSeparator = Literal["none", "year", "month", "day"]
METADATA = "metadata"
_DATES: dict[DateSeparator, str] = {"none": "", "year": "%Y", "month": "%Y-%m", "day": "%Y-%m-%d"}
_FILE = re.compile(r"CDC(\d+)\.(csv|json)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PathForm:
    """How paths are written: ``[sink] date-separator``, ``file-index-digit``, and the protocol's extension."""

    extension: str
    date_separator: DateSeparator = "day"
    file_index_digit: int = 20

    def table_folder(self, form: FolderForm) -> str:
        """Return the folder of a table version, or of one of its partitions; dates are below it."""
        if not form.schema and form.partition_id is not None:
            return f"{form.partition_id}/{form.version}"
        partition = () if form.partition_id is None else (str(form.partition_id),)
        return "/".join((schema_path_name(form.schema), path_name(form.table), str(form.version), *partition))

    def folder(self, form: FolderForm, now: datetime) -> str:
        """Return the folder of files that are written at ``now``, in the changefeed's time zone."""
        date = now.strftime(_DATES[self.date_separator])
        return self.table_folder(form) + (f"/{date}" if date else "")

    def file_name(self, number: int) -> str:
        """Return a data file's name; the first one's number is 1."""
        return f"CDC{number:0{self.file_index_digit}d}.{self.extension}"


def index_path(folder: str) -> str:
    """Return the index file of a folder with data files."""
    return f"{folder}/meta/CDC.index"


def file_number(name: str) -> int | None:
    """Return a data file's number; None: it is none.

    >>> file_number("CDC000017.csv"), file_number("CDC.index")
    (17, None)
    """
    match = _FILE.fullmatch(name)
    return int(match[1]) if match else None


def indexed_number(content: bytes, path: str) -> int:
    """Return the number of the file that an index file names.

    Raises:
        CorruptDataError: it names none.
    """
    number = file_number(content.decode("utf-8", "replace").strip())
    if number is None:
        raise CorruptDataError("an index file names no data file", path=path, content=content[:100])
    return number
