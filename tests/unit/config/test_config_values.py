"""Small pieces of the configuration: durations, masked URIs, lines of keys."""

import pytest

from schemas.config.parse.duration import Seconds, format_duration, parse_duration
from schemas.config.parse.origin import dotted
from schemas.config.parse.secret import Secret, SecretUrl, is_url
from schemas.config.parse.toml_lines import key_lines
from schemas.masking import mask_uri


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("10s", 10), ("1h30m", 5400), ("1.5ms", 0.0015), ("100us", 1e-4), ("2m.5s", 120.5), ("1h1m1s", 3661)],
)
def test_parse_duration_go_text_gives_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "10", "s", "-1s", "1 s", "1d", "1s2", "1e3s", "١s", "1s ", "9999999h", "9" * 400 + "s"]
)
def test_parse_duration_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        parse_duration(text)


@pytest.mark.parametrize("seconds", [0.0, 1.0, 90.0, 600.0, 86400.0, 0.0015, 1.25, 12345.678])
def test_format_duration_is_read_back_the_same(seconds: float) -> None:
    assert parse_duration(format_duration(Seconds(seconds))) == seconds


@pytest.mark.parametrize(
    ("uri", "masked"),
    [
        ("kafka://h:1/t", "kafka://h:1/t"),
        ("kafka://u:p@h:1/t?a=b", "kafka://***@h:1/t?a=b"),
        ("kafka://u:p@ss/w@h/t", "kafka://***@h/t"),
        ("kafka://h/t?sasl-password=x&protocol=avro", "kafka://h/t?sasl-password=***&protocol=avro"),
        (
            "s3://b/p?secret-access-key=x&access-key=y&session-token=z",
            "s3://b/p?secret-access-key=***&access-key=***&session-token=***",
        ),
        ("http://h/t?", "http://h/t?"),
        ("http://h/t?a=b#", "http://h/t?a=b#"),
        ("http://h/t?a=b#hidden", "http://h/t?a=b#***"),
        ("mysql://root:pw?secret1#2@h:3306/", "mysql://***@h:3306/"),
        ("x?a=1#b@c", "x?a=1#***"),
        ("no uri", "no uri"),
        ("", ""),
    ],
)
def test_mask_uri_hides_what_may_be_secret(uri: str, masked: str) -> None:
    assert mask_uri(uri) == masked


def test_secret_any_formatting_is_stars() -> None:
    secret = Secret("word")
    assert {str(secret), f"{secret}", f"{secret:s}", "%s" % secret} == {"***"}  # noqa: UP031
    assert "word" not in repr([secret, SecretUrl("http://u:word@h")])
    assert secret == Secret("word") != Secret("other")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://h", True),
        ("https://u:p@h:1/x", True),
        ("ftp://h", False),
        ("h:1", False),
        ("http://", False),
        ("http://h:x", False),
    ],
)
def test_is_url_http_with_a_host(text: str, expected: bool) -> None:
    assert is_url(text) is expected


def test_dotted_path_is_as_people_write_it() -> None:
    assert dotted(("a", 0, "b", 1, 2, "c")) == "a[0].b[1][2].c"


TOML_LINES = (
    "# comment = 1",
    "a = 1",
    '"b c".d = "x # y = 2" # z = 3',
    'e = """',
    'not = "a key"',
    '\\""" still """',
    "f = '''",
    "x = 1",
    "''y'''",
    "g = [ # one",
    "  1,",
    "  {h = [2], i.j = 3},",
    "",
    """  [ 'x', "]" ],""",
    "]",
    "[t.u]",
    "v = 1979-05-27T07:32:00Z",
    "[[t.w]]",
    "x = 1",
    "[[t.w]]",
    "[t.w.y]",
    "z = {}",
)


def test_key_lines_all_forms_of_toml_are_followed() -> None:
    lines = key_lines("\n".join(TOML_LINES))
    assert lines == {
        ("a",): 2,
        ("b c",): 3,
        ("b c", "d"): 3,
        ("e",): 4,
        ("f",): 7,
        ("g",): 10,
        ("g", 0): 11,
        ("g", 1): 12,
        ("g", 1, "h"): 12,
        ("g", 1, "h", 0): 12,
        ("g", 1, "i"): 12,
        ("g", 1, "i", "j"): 12,
        ("g", 2): 14,
        ("g", 2, 0): 14,
        ("g", 2, 1): 14,
        ("t",): 16,
        ("t", "u"): 16,
        ("t", "u", "v"): 17,
        ("t", "w"): 18,
        ("t", "w", 0): 18,
        ("t", "w", 0, "x"): 19,
        ("t", "w", 1): 20,
        ("t", "w", 1, "y"): 21,
        ("t", "w", 1, "y", "z"): 22,
    }


@pytest.mark.parametrize("text", ["", "\n\n", "# only", "a=1", "a=[]\r\nb={}\r\n", "a = '''\n''''"])
def test_key_lines_small_texts_end(text: str) -> None:
    assert all(line >= 1 for line in key_lines(text).values())
