"""`python -m xbridge`: the command line."""

from xbridge.files import script

if __name__ == "__main__":
    script()
