"""Beats of one protocol under any order of what changefeeds do: who reads between two beats gets the same."""

from hypothesis import given
from hypothesis import strategies as st

from sorters.core.service.beats import BEAT_WAIT_MAX_S, Beats

WHO = st.sampled_from("abc")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("land"), st.integers(1, 3)),
        st.tuples(st.just("tell"), WHO),
        st.tuples(st.just("read"), WHO),
        st.tuples(st.just("leave"), WHO),
        st.tuples(st.just("wait"), st.floats(0, BEAT_WAIT_MAX_S)),
    )
)


@given(STEPS, st.floats(0, 2))
def test_beats_go_on_and_all_who_wanted_one_have_read_it_or_waited_too_long(
    steps: list[tuple[str, object]], rest_s: float
) -> None:
    beats, newest, now_s, beat = Beats(0), 0, 0.0, 0
    wanting: set[object] = set()
    for step, what in steps:
        was_open = beats.end(newest + 1) > newest
        match step, what:
            case "land", int(count):
                newest += count
            case "wait", float(seconds):
                now_s += seconds
            case "tell", who if beats.end(newest) > beat or who in wanting:
                wanting.add(who)
                beats.tell(who)
            case "read", who:
                wanting.discard(who)
                got = beats.read(who, newest, now_s, 0.0)
                assert got == (newest if was_open else beat), "the first one gets all that is there, others the same"
                beat = got
            case "leave", who:
                wanting.discard(who)
                beats.leave(who)
        set_at_s = beats.set_at_s
        if beats.open(newest, now_s, set_at_s + rest_s):
            assert not was_open or step == "read"
            assert newest > beat
            assert now_s >= set_at_s + rest_s
            assert not wanting or now_s >= set_at_s + BEAT_WAIT_MAX_S
        else:
            is_wanted = bool(wanting) and now_s < set_at_s + BEAT_WAIT_MAX_S
            is_open = beats.end(newest + 1) > newest
            assert is_open or newest == beat or now_s < set_at_s + rest_s or is_wanted


def test_beat_that_is_open_goes_as_far_as_there_is_anything() -> None:
    beats = Beats(3)
    assert (beats.end(9), beats.is_stale(3), beats.is_stale(9)) == (3, False, True)
    assert beats.open(9, 0.0, 0.0)
    assert (beats.end(9), beats.end(12), beats.is_stale(12)) == (9, 12, False)
    assert beats.read("one", 12, 5.0, 1.5) == 12
    assert (beats.end(20), beats.set_at_s, beats.set_cpu_s) == (12, 5.0, 1.5)
