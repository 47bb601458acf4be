"""What a service says of a trouble that it meets some times a second."""

from sorters.core.service.slow_words import SAID_EACH_S, SlowWords


def test_words_are_due_when_they_are_new_and_each_minute_until_the_trouble_ends() -> None:
    words = SlowWords()
    assert words.are_due("away", 5.0)
    assert not words.are_due("away", 5.5)
    assert not words.are_due("away", 5.0 + SAID_EACH_S - 1)
    assert words.are_due("away", 5.0 + SAID_EACH_S)
    assert not words.are_due("away", 6.0 + SAID_EACH_S)
    assert words.are_due("garbage", 6.0 + SAID_EACH_S)
    assert words.end()
    assert not words.end()
    assert words.are_due("garbage", 7.0 + SAID_EACH_S)
