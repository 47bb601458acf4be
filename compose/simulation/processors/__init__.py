"""A changefeed's processors, their leader, the topic between and the destination, in one process under every fault."""
