"""``python -m compose.cli``: how the local bus starts its own commands, whatever is on the PATH."""

from compose.cli import main

if __name__ == "__main__":
    main()
