"""`python -m zdiloco.cli` is `zdiloco`, for where the script of that name is not installed."""

from zdiloco.cli.main import main

if __name__ == "__main__":
    main()
