"""Who gets into the API: from where, as whom, and how much of it at once."""
