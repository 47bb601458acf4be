"""From TiKV to the raw log: ``pull`` does it, ``region_server`` stands in for TiKV and PD where there is none."""
