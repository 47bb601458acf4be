"""Who gets into the API: from where, as whom, and how much of it at once. It knows nothing else of the API."""
