"""Check the types of the public API, with pyright.

Of functions across libraries and of the command line, only `xbridge.aligned` and the command are public.
Their modules stand in folders without an underscore, so pyright counts them too, and this leaves them out.
"""

import json
import subprocess
import sys

INSIDE = ("xbridge.functions.", "xbridge.files.")


def main() -> None:
    """Print the public symbols whose type is unknown or ambiguous; exit with 1 if there is one."""
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(  # noqa: S603 -- the command is above
        [*command, "--verifytypes", "xbridge", "--ignoreexternal"], capture_output=True, check=False
    )
    symbols = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    public = [each for each in symbols if each["isExported"] and not each["name"].startswith(INSIDE)]
    faults = [each for each in public if not each["isTypeKnown"] or each["isTypeAmbiguous"]]
    for fault in faults:
        print(fault["name"], *(each["message"] for each in fault["diagnostics"]), sep="\n    ")
    print(f"{len(public)} public symbols, {len(faults)} without a type")
    sys.exit(bool(faults or not public))


if __name__ == "__main__":
    main()
