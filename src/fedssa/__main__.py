"""`python -m fedssa` is the command `fedssa`."""

from fedssa.cli import main

if __name__ == "__main__":
    main()
