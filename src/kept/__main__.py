"""`python -m kept`: the command line, where the `kept` script is not on the PATH."""

from __future__ import annotations

from kept.cli.main import main

if __name__ == "__main__":
    main()
