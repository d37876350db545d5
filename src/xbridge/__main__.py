"""`python -m xbridge`: the command line."""

from xbridge._cli import script

if __name__ == "__main__":
    script()
