"""`python -m rollwright`."""

from rollwright.cli.main import main

if __name__ == "__main__":
    main()
