"""The raw log as the control plane sees it: the frontier topic, and what can still be read."""
