"""How captures talk to each other: gRPC streams between every two of them, below the machines of scheduling."""
