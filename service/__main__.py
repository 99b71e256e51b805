"""`python -m service` is `tilemlp`."""

from service.cli import main

if __name__ == "__main__":
    main()
