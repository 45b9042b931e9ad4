"""`python -m gemcut` is the same program as `gemcut`, so that torchrun can launch it."""

from gemcut.cli import main

if __name__ == "__main__":
    main()
