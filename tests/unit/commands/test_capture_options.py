"""What a capture's options come to."""

import pytest

from compose.capture import process
from compose.capture.settings.options import CaptureOptions
from compose.cli import run_cli


def options_of(monkeypatch: pytest.MonkeyPatch, *more: str) -> CaptureOptions:
    """Return what a capture would be run with."""
    seen = list[CaptureOptions]()

    def run_capture(options: CaptureOptions) -> int:
        seen.append(options)
        return 0

    monkeypatch.setattr(process, "run_capture", run_capture)
    where = ["--pd", "127.0.0.1:1", "--kafka", "127.0.0.1:2", "--zookeeper", "127.0.0.1:3"]
    assert run_cli(["capture", *where, "--schema-registry", "http://127.0.0.1:4", *more]) == 0
    (options,) = seen
    return options


def test_capture_when_streams_per_store_max_is_given_then_its_feed_may_open_so_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert options_of(monkeypatch).puller.feed.streams_per_store_max == 256
    assert options_of(monkeypatch, "--streams-per-store-max", "2000").puller.feed.streams_per_store_max == 2000
