"""From TiKV to the raw log: PD client, event feed, matcher, puller, landing; and a region server that stands in for TiKV."""
