"""Functions that conditions of event filters may call: TiDB's, as many as we compute as TiDB does."""

from typing import Final

FUNCTIONS: Final[dict[str, tuple[int, int]]] = {
    "ABS": (1, 1),
    "ASCII": (1, 1),
    "CEIL": (1, 1),
    "CHAR_LENGTH": (1, 1),
    "COALESCE": (1, 99),
    "CONCAT": (1, 99),
    "CONCAT_WS": (2, 99),
    "CRC32": (1, 1),
    "DATE": (1, 1),
    "DATEDIFF": (2, 2),
    "DATE_FORMAT": (2, 2),
    "DAYNAME": (1, 1),
    "DAYOFMONTH": (1, 1),
    "DAYOFWEEK": (1, 1),
    "DAYOFYEAR": (1, 1),
    "FLOOR": (1, 1),
    "GREATEST": (2, 99),
    "HEX": (1, 1),
    "HOUR": (1, 1),
    "IF": (3, 3),
    "IFNULL": (2, 2),
    "INSTR": (2, 2),
    "ISNULL": (1, 1),
    "JSON_EXTRACT": (2, 2),
    "JSON_UNQUOTE": (1, 1),
    "LAST_DAY": (1, 1),
    "LEAST": (2, 99),
    "LEFT": (2, 2),
    "LENGTH": (1, 1),
    "LOCATE": (2, 2),
    "LOWER": (1, 1),
    "LTRIM": (1, 1),
    "MD5": (1, 1),
    "MICROSECOND": (1, 1),
    "MINUTE": (1, 1),
    "MOD": (2, 2),
    "MONTH": (1, 1),
    "MONTHNAME": (1, 1),
    "NULLIF": (2, 2),
    "QUARTER": (1, 1),
    "REGEXP_LIKE": (2, 2),
    "REPLACE": (3, 3),
    "REVERSE": (1, 1),
    "RIGHT": (2, 2),
    "ROUND": (1, 2),
    "RTRIM": (1, 1),
    "SECOND": (1, 1),
    "SHA1": (1, 1),
    "SIGN": (1, 1),
    "STRCMP": (2, 2),
    "SUBSTRING": (2, 3),
    "TO_DAYS": (1, 1),
    "TRIM": (1, 1),
    "TRUNCATE": (2, 2),
    "UNIX_TIMESTAMP": (1, 1),
    "UPPER": (1, 1),
    "WEEKDAY": (1, 1),
    "YEAR": (1, 1),
}
"""Name, and how many arguments it takes: from, to. docs/formats/dispatchers-and-filters.md names them all."""
DATE_ADDS: Final = {"ADDDATE": False, "DATE_ADD": False, "DATE_SUB": True, "SUBDATE": True}
"""Functions of a time and ``INTERVAL n unit``, and whether they go back."""
UNITS: Final = ("MICROSECOND", "SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "QUARTER", "YEAR")
"""Units of an interval."""
SYNONYMS: Final = {
    "CEILING": "CEIL",
    "CHARACTER_LENGTH": "CHAR_LENGTH",
    "DAY": "DAYOFMONTH",
    "LCASE": "LOWER",
    "MID": "SUBSTRING",
    "OCTET_LENGTH": "LENGTH",
    "SHA": "SHA1",
    "SUBSTR": "SUBSTRING",
    "UCASE": "UPPER",
}
NEVER: Final = frozenset(
    {
        *("NOW", "CURRENT_TIMESTAMP", "LOCALTIME", "LOCALTIMESTAMP", "SYSDATE", "CURDATE", "CURRENT_DATE", "CURTIME"),
        *("CURRENT_TIME", "UTC_DATE", "UTC_TIME", "UTC_TIMESTAMP", "RAND", "UUID", "UUID_SHORT"),
        *("SLEEP", "CONNECTION_ID", "USER", "CURRENT_USER", "DATABASE", "VERSION", "FOUND_ROWS", "LAST_INSERT_ID"),
    }
)
"""Functions of when and where they are asked: a row that is read again would be judged otherwise."""
