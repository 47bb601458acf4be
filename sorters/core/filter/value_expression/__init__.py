"""Conditions on the values of a row, as users write them: SQL expressions over columns, a whole chunk at once."""
