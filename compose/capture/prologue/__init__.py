"""Prologues, which land what was before the raw log: when one may begin, its tables, an attempt, the owner's care."""
