"""A change of a changefeed's settings, and what it may not be."""

from dataclasses import dataclass, field, replace
from typing import Any

from consumers.control.changefeeds.kept_settings import readable_part
from consumers.control.core.changefeeds.kept_secrets import FeedSettings, misdirected, secret_paths, value_at
from schemas.config.changefeed import load_changefeed
from schemas.config.parse.origin import Path
from schemas.config.settings import ChangefeedConfig
from schemas.config.zone import check_zone
from schemas.errors import Action, BusError, ConfigError
from schemas.ids import Ts
from schemas.nodes.changefeed import ChangefeedInfo, ChangefeedState

UPDATABLE: frozenset[ChangefeedState] = frozenset({"stopped", "failed"})


class UpdateRefusedError(BusError):
    """The changefeed cannot be updated now, or there is nothing to update."""

    code, action = "changefeed.update_refused", Action.STOP_CHANGEFEED


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """Parts of a changefeed's settings; None: as they are. ``config`` is replaced as a whole, as TiCDC does."""

    sink_uri: str | None = field(default=None, repr=False)
    config: dict[str, Any] | None = field(default=None, repr=False)
    target_ts: Ts | None = None
    kept: frozenset[Path] = frozenset()
    """Settings of ``config`` that are the stored ones: who asks has sent a mask for them, or nothing."""


def configured(info: ChangefeedInfo, state: ChangefeedState, change: ConfigChange) -> ChangefeedInfo:
    """Return the changefeed with a change of its settings.

    Raises:
        UpdateRefusedError: its state does not allow it, it changes nothing, or what the changefeed begins with; or it
            would send secrets elsewhere that nobody has given again.
        ConfigError: the result is not allowed.
    """
    if state not in UPDATABLE:
        raise UpdateRefusedError(
            "only a stopped or failed changefeed can be updated; pause it first",
            changefeed=info.changefeed_id,
            state=state,
        )
    changed = replace(
        info,
        sink_uri=info.sink_uri if change.sink_uri is None else change.sink_uri,
        config=info.config if change.config is None else change.config,
        target_ts=info.target_ts if change.target_ts is None else change.target_ts,
    )
    if changed == info:
        raise UpdateRefusedError("the settings are what they were; nothing to update", changefeed=info.changefeed_id)
    config = load_changefeed(changed.sink_uri, changed.config)
    part, before = readable_part(info) or (None, None)
    _check_kept(info, before if part is info else None, changed, config, change)
    if before is not None:
        _check_what_stays(info, before, config)
    if part is not info or before is None or config.sink.mysql.time_zone != before.sink.mysql.time_zone:
        check_zone(config, info.time_zone)
    if changed.target_ts is not None and changed.target_ts <= changed.start_ts:
        raise ConfigError(
            "target-ts must be above start-ts", key="target-ts", target_ts=changed.target_ts, start_ts=changed.start_ts
        )
    return changed


def _check_kept(
    info: ChangefeedInfo,
    before: ChangefeedConfig | None,
    changed: ChangefeedInfo,
    config: ChangefeedConfig,
    change: ConfigChange,
) -> None:
    """Refuse to send stored secrets to where who asks has chosen, for that would show them to him."""
    kept = change.kept
    if change.config is None:
        kept = frozenset(secret_paths(info.config))
    elif any(value_at(info.config, path) != value_at(change.config, path) for path in kept):
        # Else secrets of former settings would go to where another change, sent meanwhile, has set the changefeed.
        text = "the settings have changed since their secrets were taken over for this update; ask again"
        raise UpdateRefusedError(text, changefeed=info.changefeed_id)
    wrong = misdirected(
        FeedSettings(sink_uri=info.sink_uri, table=info.config, config=before),
        FeedSettings(sink_uri=changed.sink_uri, table=changed.config, config=config),
        kept,
        keeps_uri=change.sink_uri is None,
    )
    if wrong is not None:
        secrets, by = ", ".join(wrong.secrets), ", ".join(wrong.by)
        text = f"secrets that are masked or kept would go elsewhere, by another {by}; give them again: {secrets}"
        raise UpdateRefusedError(text, changefeed=info.changefeed_id, key=secrets)


def _check_what_stays(info: ChangefeedInfo, before: ChangefeedConfig, config: ChangefeedConfig) -> None:
    """Refuse to change what a changefeed begins with."""
    if (config.initial, config.initial_rules) != (before.initial, before.initial_rules):
        raise UpdateRefusedError(
            "what a changefeed begins with stays; ask for a table's rows by `tidebus table backfill`",
            changefeed=info.changefeed_id,
            key="initial",
            is_now=before.initial,
            asked=config.initial,
        )
    if config.state_proofs != before.state_proofs:
        raise UpdateRefusedError(
            "of which tables state proofs are carried stays: what happens in between would be in none",
            changefeed=info.changefeed_id,
            key="state-proofs",
            is_now=", ".join(before.state_proofs),
            asked=", ".join(config.state_proofs),
        )
