"""``[sink]`` of the changefeed file and the sink URI, for each kind of sink."""
