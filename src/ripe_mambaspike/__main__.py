"""`python -m ripe_mambaspike` is `ripe`."""

from ripe_mambaspike.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
