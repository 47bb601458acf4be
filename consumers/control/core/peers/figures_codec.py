"""A puller's figures in a landing report, to and from protobuf."""

from consumers.control.core.peers.span_codec import decode_span, encode_span
from schemas.proto.landingpb_pb2 import PullFigures as RawFigures
from schemas.proto.landingpb_pb2 import StalledSpan as RawStall
from schemas.rawlog.pull_figures import COUNTS, PullFigures, StalledSpan


def put_figures(raw: RawFigures, figures: PullFigures) -> None:
    """Fill ``raw``."""
    raw.CopyFrom(
        RawFigures(
            **{name: getattr(figures, name) for name in COUNTS},
            troubles=dict(figures.troubles),
            stalls=[RawStall(span=encode_span(stall.span), reason=stall.reason) for stall in figures.stalls],
            broker_reason=figures.broker_reason,
        )
    )


def figures_of(raw: RawFigures) -> PullFigures:
    """Return what ``raw`` says.

    Raises:
        CorruptDataError: a span is none.
    """
    return PullFigures(
        **{name: getattr(raw, name) for name in COUNTS},
        troubles=dict(raw.troubles),
        stalls=tuple(StalledSpan(decode_span(stall.span), stall.reason) for stall in raw.stalls),
        broker_reason=raw.broker_reason,
    )
