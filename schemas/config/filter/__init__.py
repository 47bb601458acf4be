"""Grammars of filters: table rules, event names and conditions over rows."""
