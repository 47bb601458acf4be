"""The changefeed file and the sink URI: TiCDC's keys, defaults and checks."""
