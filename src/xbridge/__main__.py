"""`python -m xbridge`: the command line."""

from _xbridge_script import script

if __name__ == "__main__":
    script()
