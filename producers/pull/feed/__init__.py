"""The event feed: subscribed spans in, matched row changes and resolved ts out."""
