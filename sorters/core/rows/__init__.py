"""Row changes to output records: the one path that production and dry run share."""
