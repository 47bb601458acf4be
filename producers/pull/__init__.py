"""From TiKV to the raw log: PD client, event feed, matcher, puller, landing."""
