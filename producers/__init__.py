"""From TiKV to the raw log: PD client, event feed, matcher, puller, landing.

``region_server`` stands in for TiKV and PD where there is none.
"""
