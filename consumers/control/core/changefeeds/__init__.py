"""The states of a changefeed, which errors heal, and which sorters are wanted."""
