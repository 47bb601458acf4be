"""A changefeed of a TiCDC taken over: paused there, created here at its checkpoint, resumed there if that fails.

    paused there ── its checkpoint stands ── created here ── done
         │                   │                    │ refused
         └───────────────────┴────────────────────┴──────── resumed there, and the error says why

Rows that TiCDC had sent above its last checkpoint are sent once more, as after each of its own restarts.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from compose.operator.api_calls import ApiCalls, tables_without_key
from compose.operator.migration import TicdcChangefeed, read_changefeed, scope
from consumers.control.api.replica_config import replica_config
from schemas.errors import Action, BusError
from schemas.ids import Ts
from schemas.nodes.changefeed import NAMESPACE_DEFAULT

PAUSED_S: Final = 60.0
"""That a TiCDC may take until a paused changefeed is stopped."""
LOOK_S: Final = 0.5
STOPPED: Final = "stopped"


class OtherUpstreamError(BusError):
    """The bus pulls another TiDB than the changefeed replicates."""

    code, action = "migrate.other_upstream", Action.STOP_CHANGEFEED


class NotPausedError(BusError):
    """TiCDC has taken the pause, and the changefeed does not stop."""

    code, action = "migrate.not_paused", Action.RETRY


class NotTakenOverError(BusError):
    """It could not be created here; ``there`` says how it stands with TiCDC."""

    code, action = "migrate.not_taken_over", Action.STOP_CHANGEFEED


class ZoneUnknownError(BusError):
    """TIMESTAMPs might be written in another zone than TiCDC's, which its API does not tell."""

    code, action = "migrate.zone_unknown", Action.STOP_CHANGEFEED


@dataclass(frozen=True, slots=True)
class TakenOver:
    """A changefeed that runs here now."""

    changefeed: TicdcChangefeed
    start_ts: Ts
    """TiCDC's last checkpoint: all up to it had been sent."""


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Takes changefeeds of ``ticdc`` over into ``bus``."""

    ticdc: ApiCalls
    bus: ApiCalls
    pause: Callable[[float], None] = time.sleep

    def check(self, changefeed: TicdcChangefeed) -> Sequence[str]:
        """Refuse what could only fail once it is paused; return the tables that are left out here as they are there:
        those that have no key.

        Raises:
            OtherUpstreamError
            BusError: the bus does not answer, or refuses the settings.
        """
        upstreams = self.bus.get("/api/tidebus/overview")["upstreams"]
        ours = {upstream.get("upstream_id") for upstream in upstreams}
        if changefeed.upstream_id not in ours:
            shown = ", ".join(str(cluster_id) for cluster_id in ours)
            raise OtherUpstreamError(
                "the bus pulls another TiDB cluster",
                changefeed=changefeed.changefeed_id,
                cluster_id=changefeed.upstream_id,
                ours=shown,
            )
        left_out = tables_without_key(self.bus, self._settings(changefeed), start_ts=0)
        return [] if _replicates_all(changefeed) else left_out

    def check_zone(self, time_zone: str, changefeeds: Sequence[str]) -> None:
        """Refuse to go on in another zone than TiCDC's servers have.

        Args:
            time_zone: theirs, by name; empty: nobody has said.
            changefeeds: that write TIMESTAMPs as texts, by id.

        Raises:
            ZoneUnknownError
            BusError: the bus does not answer.
        """
        ours = str(self.bus.get("/config").get("tz", ""))
        if changefeeds and time_zone != ours:
            raise ZoneUnknownError(
                "give by --tz which zone TiCDC's servers have (their --tz, or the machine's)"
                if not time_zone
                else "captures write TIMESTAMPs in another zone than TiCDC's servers: start them with that one by --tz",
                changefeeds=", ".join(changefeeds),
                there=time_zone,
                here=ours,
            )

    def run(self, changefeed: TicdcChangefeed) -> TakenOver:
        """Pause there, create here.

        Raises:
            NotPausedError, NotTakenOverError
            BusError: TiCDC does not answer, or refuses to pause.
        """
        try:
            start_ts = self._paused(changefeed)
            body = {
                **self._settings(changefeed),
                "namespace": changefeed.namespace,
                "changefeed_id": changefeed.changefeed_id,
                "start_ts": start_ts,
                "target_ts": changefeed.target_ts or 0,
            }
            self.bus.call("POST", "/changefeeds", body)
        except BusError as error:
            raise NotTakenOverError(
                "changefeed was not taken over",
                changefeed=changefeed.changefeed_id,
                there=self._back(changefeed),
                reason=str(error),
            ) from error
        return TakenOver(changefeed, start_ts)

    def _paused(self, changefeed: TicdcChangefeed) -> Ts:
        self.ticdc.call("POST", f"/changefeeds/{changefeed.changefeed_id}/pause", {}, **scope(changefeed.namespace))
        for _ in range(round(PAUSED_S / LOOK_S)):
            shown = read_changefeed(self.ticdc, changefeed.changefeed_id, changefeed.namespace)
            if shown.state == STOPPED:
                return shown.checkpoint_ts
            self.pause(LOOK_S)
        raise NotPausedError(f"changefeed is not stopped after {PAUSED_S:.0f} s", state=shown.state)

    def _back(self, changefeed: TicdcChangefeed) -> str:
        """Let it go on there; return how it stands with TiCDC now."""
        try:
            self.ticdc.call(
                "POST", f"/changefeeds/{changefeed.changefeed_id}/resume", {}, **scope(changefeed.namespace)
            )
        except BusError as error:
            return f"paused; `cdc cli changefeed resume` is for you to run: {error}"
        return "goes on"

    @staticmethod
    def _settings(changefeed: TicdcChangefeed) -> dict[str, object]:
        config = replica_config(changefeed.settings)
        # TiCDC passes them over, whatever was asked at creation.
        ignored = {} if _replicates_all(changefeed) else {"ignore_ineligible_table": True}
        return {"sink_uri": changefeed.sink_uri, "replica_config": {**config, **ignored}}


def _replicates_all(changefeed: TicdcChangefeed) -> bool:
    return changefeed.settings.get("force-replicate") is True


def way_back(taken: TakenOver, ticdc_url: str) -> tuple[str, ...]:
    """Return the commands that bring a changefeed back to TiCDC, at the checkpoint that it will have here then."""
    name = taken.changefeed.changefeed_id
    namespace = taken.changefeed.namespace
    which = f"-c {name}" + ("" if namespace == NAMESPACE_DEFAULT else f" -n {namespace}")
    return (
        f"tidebus changefeed pause {which}",
        f"tidebus changefeed query -s {which}    # its checkpoint_tso is TSO below",
        f"cdc cli changefeed resume --server {ticdc_url} {which} --overwrite-checkpoint-ts TSO",
        f"tidebus changefeed remove {which}",
    )
