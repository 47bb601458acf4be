"""Which captures may work together (docs/formats/cluster.md §2): two neighbours do, for a rolling upgrade."""

import re
from collections.abc import Collection

from schemas.errors import Action, BusError

VERSIONS_MAX = 2
"""Versions of one cluster at a time: the one before an upgrade and the one after it."""
_SEMVER = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:[-+].*)?")


class VersionMismatchError(BusError):
    """Captures of these versions must not share a cluster; the owner schedules nothing until one kind is gone."""

    code, action = "scheduling.version_mismatch", Action.RETRY


def parse_version(version: str) -> tuple[int, int, int]:
    """Return major, minor and patch; what follows them (``-alpha``, ``+build``) does not matter here.

    Raises:
        VersionMismatchError: not semver.
    """
    match = _SEMVER.fullmatch(version)
    if match is None:
        raise VersionMismatchError("capture version is not semver", version=version)
    major, minor, patch = (int(part) for part in match.groups())
    return major, minor, patch


def check_versions(versions: Collection[str], *, oldest: str, end: str) -> None:
    """Check that captures of ``versions`` may work together; two different ones must both be in ``[oldest, end)``.

    Raises:
        VersionMismatchError: three versions or more, or two of which one is out of the range.
    """
    distinct = sorted(set(versions))
    if len(distinct) > VERSIONS_MAX:
        raise VersionMismatchError(
            "captures of too many versions; no table is moved or begun until there are fewer",
            versions=distinct,
            allowed=VERSIONS_MAX,
        )
    if len(distinct) < VERSIONS_MAX:
        return
    bounds = parse_version(oldest), parse_version(end)
    if strange := [version for version in distinct if not bounds[0] <= parse_version(version) < bounds[1]]:
        raise VersionMismatchError(
            "captures of versions too far apart; no table is moved or begun while they are there",
            versions=strange,
            allowed=f"[{oldest}, {end})",
        )
