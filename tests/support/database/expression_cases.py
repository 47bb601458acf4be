"""Conditions with functions, casts and operators, rows, and what they are: of TiDB, and mostly of any MySQL."""

from typing import Any, Final

DOCUMENT: Final = (
    '{"a": 1, "b": "x\\"é", "c": [1, {"d": 2.5}, [true, null]], "e f": {}, '
    '"n": null, "t": true, "big": 18446744073709551615}'
)
"""A JSON document as TiDB prints it."""
_TIMES: Final = {"t": "2024-02-29 10:20:30.500", "day": "2024-02-29"}
_NO_DAYS: Final = {"t": "2024-00-01 10:20:30", "day": "2024-01-00"}
_JSON: Final = {"j": DOCUMENT}
CASES: Final[list[tuple[str, dict[str, Any], int | None]]] = [
    ("a / b is null", {"a": 1, "b": 0}, 1),
    ("a / b = 2.5", {"a": 5, "b": 2}, 1),
    ("r / 2 = 0.75", {"r": 1.5}, 1),
    *((f"r {test} 9007199254740993", {"r": 2.0**53}, truth) for test, truth in (("=", 1), ("<", 0), (">=", 1))),
    ("not 9007199254740993 <> r and r in (1, 9007199254740993)", {"r": 2.0**53}, 1),
    ("9007199254740993 = 9007199254740992e0", {}, 1),
    ("~a = 18446744073709551615", {"a": 0}, 1),
    ("-1 & a = 5", {"a": 5}, 1),
    ("a << 64", {"a": 1}, 0),
    ("1 | 2 ^ 3 = 1", {}, 1),
    ("-1 >> 63 = 1", {}, 1),
    ("ci collate utf8mb4_bin = 'X '", {"ci": b"X"}, 1),
    ("ci = 'STRASE ' and ci > 'stra' and ci < 'strb' and ci <> 'strasse'", {"ci": "Straße".encode()}, 1),
    ("ci in ('x', 'ÀB') and ci between 'aa' and 'ac'", {"ci": b"ab"}, 1),
    ("ci like 'Á_\\_%x' and ci not like 'b%'", {"ci": "aß_🎉X".encode()}, 1),
    ("ci = concat('🎉', '😀')", {"ci": "😁😂".encode()}, 1),
    ("strcmp(ci, 'B') = -1 and replace(ci, 'A', '') = 'A' and case ci when 'A' then 1 end", {"ci": b"a"}, 1),
    ("s collate utf8mb4_general_ci = 'X' and upper(ci) = 'é'", {"s": b"x", "ci": b"e"}, 1),
    ("a = 0x1F and a = 0b11111 and a = b'11111' and a & 0x10 = 16 and a in (1, 0x1f)", {"a": 31}, 1),
    ("raw = x'00ff' and raw > 0x00 and raw <> 0x0100 and x'61' = 'a'", {"raw": b"\0\xff"}, 1),
    ("s = x'61' and s < 0x7A and s = 0b01100001 and ci = x'41'", {"s": b"a", "ci": b"a"}, 1),
    ("u = 0xFFFFFFFFFFFFFFFF", {"u": (1 << 64) - 1}, 1),
    (
        "date_add(t, interval 1 day) = '2024-03-01 10:20:30.5' and subdate(t, interval a hour) < t",
        {"t": "2024-02-29 10:20:30.500", "a": 1},
        1,
    ),
    (
        "t + interval a * 2 day - interval 90 minute = '2024-03-02 08:50:30.5' and day - interval 1 month < t",
        {"t": "2024-02-29 10:20:30.500", "day": "2024-03-31", "a": 1},
        1,
    ),
    (
        "day + interval 1 month + interval 1 day = '2024-03-01' and null + interval 1 day is null",
        {"day": "2024-01-31"},
        1,
    ),
    ("isnull(t + interval a day) and isnull(day - interval 8000 year)", {"t": "2024-01-31", "day": "2024-01-31"}, 1),
    (
        "date_add(day, interval 1 month) = '2024-02-29' and date_sub(day, interval 1 quarter) = '2023-10-31'",
        {"day": "2024-01-31"},
        1,
    ),
    (
        "date_add(day, interval -1 year) = '2023-02-28' and date_add(day, interval 2 week) = '2024-03-14'",
        {"day": "2024-02-29"},
        1,
    ),
    (
        "date_add(day, interval 1 microsecond) > day and date_add(day, interval 90 minute) = '2024-02-29 01:30:00'",
        {"day": "2024-02-29"},
        1,
    ),
    (
        "isnull(date_add(t, interval 8000 year)) and adddate(day, interval 1 day) is null",
        {"t": "2024-02-29 10:20:30.500", "day": "0000-00-00"},
        1,
    ),
    (
        "date_format(t, '%Y-%m-%d %H:%i:%s.%f %y %c %e %j %k %T') = '2024-02-09 05:20:03.500000 24 2 9 040 5 05:20:03'",
        {"t": "2024-02-09 05:20:03.500"},
        1,
    ),
    (
        "date_format(t, '%h %I %l %p %r %M %b %%') = '12 12 12 AM 12:20:03 AM February Feb %'",
        {"t": "2024-02-09 00:20:03"},
        1,
    ),
    ("date_format(t, '0') = '0'", {"t": "2024-02-09 00:20:03"}, 1),
    (
        "last_day(day) = '2024-02-29' and to_days(day) = 739283 and dayname(day) = 'Friday' and monthname(t) = 'May'",
        {"day": "2024-02-02", "t": "2023-05-01"},
        1,
    ),
    ("binary s = 'x '", {"s": b"x"}, 0),
    ("s regexp '^a.c$'", {"s": "aéc".encode()}, 1),
    ("s not regexp 'A'", {"s": b"a"}, 1),
    ("cast(u as signed) = -1", {"u": (1 << 64) - 1}, 1),
    ("cast(a as unsigned) = 18446744073709551615", {"a": -1}, 1),
    ("cast(d as signed) = -2", {"d": "-1.50"}, 1),
    ("cast(d as decimal(2, 1)) = 9.9", {"d": "12.30"}, 1),
    ("convert(a, char) = '12'", {"a": 12}, 1),
    ("cast(s as char(2)) = 'aé'", {"s": "aéc".encode()}, 1),
    ("cast('2024-02-29 10:00:00' as date) = day", {"day": "2024-02-29"}, 1),
    ("case when a > 1 then 'x' when a = 1 then 'y' end = 'y'", {"a": 1}, 1),
    ("case a when 1 then 1 else 0 end", {"a": 2}, 0),
    ("case when a = 1 then 1 end", {"a": 2}, None),
    ("if(a is null, 1.5, b) = 1.5", {}, 1),
    ("coalesce(a, b, 7) = 7", {}, 1),
    ("nullif(a, 3) is null", {"a": 3}, 1),
    ("greatest(a, b, 2.5) = 2.5", {"a": 1, "b": 2}, 1),
    ("least(t, day) = day", {"t": "2024-02-29 00:00:00.001", "day": "2024-02-29"}, 1),
    ("length(s) = 3 and char_length(s) = 2", {"s": "é!".encode()}, 1),
    ("upper(s) = 'ÉA' and lower('ÉA') = s", {"s": "éa".encode()}, 1),
    ("right(s, 1) = 'é' and left(s, 9) = s and left(s, -1) = ''", {"s": "aé".encode()}, 1),
    ("substring(s from 2 for 1) = 'b' and mid(s, -1, 1) = 'c'", {"s": b"abc"}, 1),
    ("substr(s, 0) = '' and substr(s, -9) = '' and substr(s, 2) = 'bc'", {"s": b"abc"}, 1),
    ("substring(raw, 2, 1) = 'b'", {"raw": b"ab\xff"}, 1),
    ("instr(s, 'c') = 3 and locate('', s) = 1 and locate('x', s) = 0", {"s": "éac".encode()}, 1),
    ("concat(s, a, '!') = 'x1!'", {"s": b"x", "a": 1}, 1),
    ("concat_ws('-', s, null, 'y') = 'x-y'", {"s": b"x"}, 1),
    ("replace(s, 'a', 'bb') = 'bbcbb' and reverse(s) = s and trim(concat(' ', s, ' ')) = s", {"s": b"aca"}, 1),
    ("hex(s) = '61' and hex(a) = 'FFFFFFFFFFFFFFFF' and ascii(s) = 97", {"s": b"a", "a": -1}, 1),
    ("crc32(s) = 3421780262 and crc32(a) = crc32('12')", {"a": 12, "s": b"123456789"}, 1),
    ("md5(s) = '900150983cd24fb0d6963f7d28e17f72'", {"s": b"abc"}, 1),
    ("sha1(s) = 'a9993e364706816aba3e25717850c26c9cd0d89d'", {"s": b"abc"}, 1),
    ("abs(a) = 3 and sign(d) = -1 and floor(d) = -2 and ceil(d) = -1", {"a": -3, "d": "-1.50"}, 1),
    ("round(d) = -2 and round(d, 1) = -1.5 and truncate(d, 0) = -1 and mod(a, 2) = 1", {"d": "-1.50", "a": 3}, 1),
    ("year(t) = 2024 and month(t) = 2 and day(t) = 29 and hour(t) = 10", {"t": "2024-02-29 10:20:30.500"}, 1),
    ("minute(t) = 20 and second(t) = 30 and microsecond(t) = 500000", {"t": "2024-02-29 10:20:30.500"}, 1),
    ("quarter(day) = 1 and dayofweek(day) = 5", {"day": "2024-02-29"}, 1),
    ("weekday(day) = 3 and dayofyear(day) = 60", {"day": "2024-02-29"}, 1),
    ("dayofweek(day) is null", {"day": "0000-00-00"}, 1),
    ("datediff(t, '2024-01-01') = 59 and date(t) = '2024-02-29'", {"t": "2024-02-29 10:20:30.500"}, 1),
    ("unix_timestamp(t) = 1709202030.5 and unix_timestamp(day) = 1709164800", _TIMES, 1),
    (
        "unix_timestamp('2024-02-29 00:00:00.25') = 1709164800.25 and unix_timestamp('2024-02-29') div 86400 = 19782",
        {},
        1,
    ),
    ("unix_timestamp(day) is null and unix_timestamp(null) is null", {}, 1),
    ("strcmp(s, 'b') = -1 and isnull(a)", {"s": b"a"}, 1),
    ("json_extract(j, '$.a') = 1 and json_extract(j, '$.c[1].d') > 2 and json_extract(j, '$.c[1].d') = 2.5", _JSON, 1),
    ("json_unquote(json_extract(j, '$.b')) = 'x\"é' and json_unquote(json_extract(j, '$.a')) = '1'", _JSON, 1),
    ("json_extract(j, '$.nope') is null and json_extract(j, '$.c[7]') is null", _JSON, 1),
    ("json_extract(j, '$.a.b') is null and json_extract(j, '$.c.d') is null", _JSON, 1),
    ("json_extract(j, '$.n') is not null and json_unquote(json_extract(j, '$.n')) = 'null'", _JSON, 1),
    ("json_unquote(json_extract(j, '$.c[2]')) = '[true, null]'", _JSON, 1),
    ("json_extract(j, '$.\"e f\"') is not null and json_unquote(json_extract(j, '$.a[0]')) = '1'", _JSON, 1),
    (
        "json_unquote(json_extract(j, '$.c[2][0]')) = 'true' and length(json_unquote(json_extract(j, '$.b'))) = 4",
        _JSON,
        1,
    ),
    ("json_extract(j, '$.a') is null", {}, 1),
]
"""Condition, values by column, and its truth."""
OF_TIDB: Final[list[tuple[str, dict[str, Any], int | None]]] = [
    ("a = x'1f' and a + x'01' = 32", {"a": 31}, 1),  # to MariaDB a text
    ("1 / 3 = 0.333333333", {}, 1),
    ("u = 9007199254740992e0 or u <= 9007199254740992.5e0", {"u": 2**53 + 1}, 0),  # MariaDB compares doubles
    ("d / 3 = 0.033333333", {"d": "0.10"}, 1),
    ("a / d = 0.666666666", {"a": 1, "d": "1.50"}, 1),
    ("t.a = 1 and T.`b` = 2", {"a": 1, "b": 2}, 1),
    ("j -> '$.a' = 1 and j ->> '$.b' = 'x\"é' and t.j->'$.c[0]' between 1 and 1.5", _JSON, 1),
    ("j -> '$.a' = '1' or j -> '$.a' <=> '1' or j -> '$.t' = 1 or j -> '$.t' = '1'", _JSON, 0),
    ("j -> '$.t' = true and j -> '$.t' > false", _JSON, 1),
    ("j -> '$.b' in ('y', 'x\"é') and j -> '$.b' > 999 and j -> '$.b' < 'y'", _JSON, 1),
    ("j -> '$.n' < -1 and j -> '$.c' > 'z' and j -> '$.e' is null and j -> '$.t' > 'z'", _JSON, 1),
    ("j -> '$.big' = 18446744073709551615 and j -> '$.big' > 9223372036854775807", _JSON, 1),
    ("j -> '$.a' = 1.000000001 and j -> '$.c[1].d' <> 2.500000001", _JSON, 1),
    ("j -> '$.c[1].d' = d and j -> '$.nope' = 1", _JSON | {"d": "2.50"}, None),
    ("j = 'x' and j -> '$' = 'x' and j -> '$[0]' = 'x'", {"j": '"x"'}, 1),
    ("regexp_like(s, '[0-9]+')", {"s": b"x7"}, 1),
    *((f"date_format(day, '{form}') is null", {"day": "0000-00-00"}, 1) for form in ("%Y", "%H:%i", "", "00", "x")),
    ("date_format(day, '%Y-%m') is null and date_format(t, '%d') is null", _NO_DAYS, 1),
    ("date_format(day, '%Y%m') < '202401'", _NO_DAYS, None),
    ("date_format(day, '0') = '0' and date_format(null, '0') is null", _NO_DAYS, 1),
]
"""TiDB divides exact numbers to whole words of nine places (pingcap/tidb ``types.DecimalDiv``), MariaDB rounds to four
more; names of tables mind case there. MariaDB formats times without a month or a day; TiDB does for the format ``0``
alone (``builtinDateFormatSig``).
"""
