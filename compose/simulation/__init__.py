"""A whole cluster in one process under one seed: the real pure cores, and models of everything that can fail around
them. `tidebus simulate` runs it, and so do the tests."""
