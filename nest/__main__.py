"""``python -m nest`` is ``nest``."""

from nest.cli.main import main

if __name__ == "__main__":
    main()
