"""What becomes of a TiCDC's changefeeds here: read by its API, judged without asking anybody.

The API is version 2 of both architectures. It shows settings whole, with defaults; what equals ours is left out of the
file that is written. A sink URI is shown with stars or ``xxxxx`` for its secrets, so such a one has to be given again.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

import tomlkit

from compose.operator.api_calls import ApiCalls
from consumers.control.api.replica_config import from_api, shown_config
from schemas.config.adjusted import UNSET
from schemas.config.changefeed import load_changefeed
from schemas.config.parse.section import default_of, fields_by_key
from schemas.config.settings import ChangefeedFile
from schemas.config.sink.sink_uri import with_ticdc_port
from schemas.errors import Action, BusError
from schemas.ids import Ts
from schemas.masking import is_secret_name, mask_uri
from schemas.nodes.changefeed import ID_PATTERN, NAMESPACE_DEFAULT

MASKED: Final = re.compile(r"xxxxx|\*\*\*|%2A%2A%2A")
"""How TiCDC and we show a secret: Go's ``url.Redacted``, and stars."""
MOVABLE: Final = frozenset({"normal", "warning"})
"""States of a changefeed that runs; others are for their operator to decide on."""
PASSED_OVER: Final = frozenset({"finished", "removed"})


class TicdcAnswerError(BusError):
    """What answers is no TiCDC, or of a version that says less of its changefeeds."""

    code, action = "migrate.strange_answer", Action.STOP_CHANGEFEED


class SecretMaskedError(BusError):
    """TiCDC shows a sink URI or a setting without its secret, and nobody has given it."""

    code, action = "migrate.secret_masked", Action.STOP_CHANGEFEED


@dataclass(frozen=True, slots=True, kw_only=True)
class TicdcChangefeed:
    """A changefeed as TiCDC shows it."""

    changefeed_id: str
    namespace: str
    """TiCDC's namespace, or keyspace in its new architecture."""
    sink_uri: str
    settings: Mapping[str, object]
    """The changefeed file's table: what is set otherwise than by default."""
    state: str
    checkpoint_ts: Ts
    target_ts: Ts | None
    upstream_id: int

    @property
    def file_name(self) -> str:
        """Of the changefeed file that is written."""
        prefix = "" if self.namespace == NAMESPACE_DEFAULT else f"{self.namespace}."
        return f"{prefix}{self.changefeed_id}.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of a changefeed here: it is refused, or it is the same but for what ``differs``."""

    changefeed: TicdcChangefeed
    differs: tuple[str, ...] = ()
    refusal: BusError | None = None
    writes_times: bool = False
    """Whether TIMESTAMPs come as texts of a zone: in messages and files. A database has its own session's."""

    @property
    def same(self) -> int:
        """How many of the settings that were made mean the same here."""
        named = {line.split(" ", 1)[0] for line in self.differs}
        return len({key for key, _ in _values(self.changefeed.settings)} - named)

    @property
    def is_movable(self) -> bool:
        """Whether it may be taken over: it runs there, and would run here."""
        return self.refusal is None and self.changefeed.state in MOVABLE


def scope(namespace: str) -> dict[str, str]:
    """Return a request's parameters for a namespace: the classic architecture reads the one, the new one the other."""
    return {"namespace": namespace, "keyspace": namespace}


def read_changefeeds(ticdc: ApiCalls, namespace: str) -> list[TicdcChangefeed]:
    """Return a TiCDC's changefeeds of a namespace, by id; finished and removed ones are left out.

    Raises:
        TicdcAnswerError
        BusError: it does not answer, or refuses.
    """
    listed = ticdc.get("/changefeeds", state="all", **scope(namespace))
    items = listed.get("items") if isinstance(listed, Mapping) else None
    if not isinstance(items, list):
        raise TicdcAnswerError("no list of changefeeds", path="/api/v2/changefeeds")
    changefeeds = []
    for item in items:
        name = item.get("id") if isinstance(item, Mapping) else None
        # It becomes a part of paths and of a file's name.
        if not isinstance(name, str) or not ID_PATTERN.fullmatch(name):
            raise TicdcAnswerError("a changefeed's id is none", got=str(name)[:80])
        if item.get("state") not in PASSED_OVER:
            changefeeds.append(read_changefeed(ticdc, name, namespace))
    return sorted(changefeeds, key=lambda changefeed: changefeed.changefeed_id)


def read_changefeed(ticdc: ApiCalls, changefeed_id: str, namespace: str) -> TicdcChangefeed:
    """Return one changefeed as TiCDC shows it.

    Raises:
        TicdcAnswerError
        BusError: it does not answer, or refuses.
    """
    info = ticdc.get(f"/changefeeds/{changefeed_id}", **scope(namespace))
    where = {"changefeed": changefeed_id}
    if not isinstance(info, Mapping) or not isinstance(info.get("config"), Mapping):
        raise TicdcAnswerError("no changefeed with its settings", **where)
    return TicdcChangefeed(
        changefeed_id=changefeed_id,
        namespace=namespace,
        sink_uri=_text(info, "sink_uri", where),
        settings=_unlike(from_api(info["config"]), from_api(shown_config({})), ChangefeedFile),
        state=_text(info, "state", where),
        checkpoint_ts=Ts(_number(info, "checkpoint_ts", where)),
        target_ts=Ts(_number(info, "target_ts", where)) if info.get("target_ts") else None,
        upstream_id=_number(info, "upstream_id", where),
    )


def judge(changefeed: TicdcChangefeed) -> Verdict:
    """Return what becomes of a changefeed here, by the checks that creating it makes."""
    # A port that is named by nobody is not the same one here, and rows must not come to another server.
    changefeed = dataclasses.replace(changefeed, sink_uri=with_ticdc_port(changefeed.sink_uri))
    try:
        # A stand-in: what is a secret decides nothing about the rest.
        config = load_changefeed(MASKED.sub("masked", changefeed.sink_uri), changefeed.settings)
    except BusError as error:
        return Verdict(changefeed=changefeed, refusal=error)
    differs, writes_times = tuple(config.notes), config.uri.server is None
    where = {"changefeed": changefeed.changefeed_id}
    if MASKED.search(changefeed.sink_uri):
        refusal = SecretMaskedError(
            "TiCDC shows the sink URI without its secrets; give it by --sink-uri ID=URI",
            sink_uri=mask_uri(changefeed.sink_uri),
            **where,
        )
        return Verdict(changefeed=changefeed, differs=differs, refusal=refusal)
    if masked := [key for key, value in _values(changefeed.settings) if _is_masked(key, value)]:
        refusal = SecretMaskedError(
            "TiCDC shows a setting without its secret; write it into the file of --out and create by that",
            key=masked[0],
            **where,
        )
        return Verdict(changefeed=changefeed, differs=differs, refusal=refusal)
    return Verdict(changefeed=changefeed, differs=differs, writes_times=writes_times)


def file_text(verdict: Verdict) -> str:
    """Return the changefeed file, TOML, with what differs as comments above it."""
    changefeed = verdict.changefeed
    document = tomlkit.document()
    document.add(tomlkit.comment(f"{changefeed.changefeed_id} of a TiCDC, as its API showed it."))
    for line in verdict.differs if verdict.refusal is None else (*verdict.differs, f"refused: {verdict.refusal}"):
        document.add(tomlkit.comment(" ".join(line.split())))
    return tomlkit.dumps(document) + tomlkit.dumps(changefeed.settings)


def _unlike(
    shown: Mapping[str, object], default: Mapping[str, object], kind: Any = None, prefix: str = ""
) -> dict[str, object]:
    """Return what is set and is no default, table by table. Empty lists and most empty texts are unset, as TiCDC shows
    them.

    Args:
        shown, default: the table, and what holds without it.
        kind: the table's section; None: it is no section.
        prefix: the table's path, with a dot behind it.
    """
    unlike: dict[str, object] = {}
    fields = fields_by_key(kind) if kind else {}
    for key, value in shown.items():
        below, path, hint = default.get(key), f"{prefix}{key}", fields[key][1] if key in fields else None
        if isinstance(value, Mapping):
            section = hint if dataclasses.is_dataclass(hint) else None
            value = _unlike(value, below if isinstance(below, Mapping) else {}, section, f"{path}.")
        elif isinstance(value, list):
            value = [_unlike(item, {}) if isinstance(item, Mapping) else item for item in value]
        if value == "" and key in fields and _says_something_empty(*fields[key], path):
            unlike[key] = value
        if value not in (None, "", [], {}) and (isinstance(value, dict) or key not in default or value != below):
            unlike[key] = value
    return unlike


def _says_something_empty(field: dataclasses.Field[Any], hint: Any, path: str) -> bool:
    """Tell whether an empty text is another value of a setting than its default, such as a CSV without quotes."""
    is_text = str in (hint, *get_args(hint))  # a word of a list is never empty: there it is unset
    return is_text and default_of(field) not in ("", dataclasses.MISSING) and "" not in UNSET.get(path, ())


def _values(settings: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _values(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _is_masked(key: str, value: object) -> bool:
    return is_secret_name(key.rpartition(".")[2]) and isinstance(value, str) and MASKED.search(value) is not None


def _text(info: Mapping[str, object], name: str, where: Mapping[str, str]) -> str:
    value = info.get(name)
    if not isinstance(value, str) or not value:
        raise TicdcAnswerError("a text is missing", field=name, got=str(value)[:80], **where)
    return value


def _number(info: Mapping[str, object], name: str, where: Mapping[str, str]) -> int:
    value = info.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 64:
        raise TicdcAnswerError("a number is missing", field=name, got=str(value)[:80], **where)
    return value
