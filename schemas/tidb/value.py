"""A column's value in the form in which TiCDC hands it to encoders."""

Value = None | int | float | str | bytes | tuple[float, ...]
"""Integers, YEAR, ENUM, SET and BIT: int (ENUM and SET as the number). FLOAT (rounded to 32 bits) and DOUBLE: float,
NaN and infinity as 0. DECIMAL, times and JSON: str. CHAR, VARCHAR, TEXT and BLOB: bytes. VECTOR: tuple of float. NULL:
None.
"""
