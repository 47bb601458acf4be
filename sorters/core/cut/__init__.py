"""Which rows a cut holds, and where epochs and cuts begin and end."""
