"""State proofs of a changefeed: what each of its tables holds, carried from cut to cut by the changes of its rows."""
