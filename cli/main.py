"""The console script `sim`. It checks that the house stands together before it imports the rest of it."""

import io
import sys
import traceback

FAULT = 70
"""Exit code of a fault of ours (`EX_SOFTWARE` of sysexits.h)."""


def main() -> None:
    """Run the command line; refuses to start when the six packages do not come from one folder."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file's name may be bytes that are no text
    try:
        from sim.house import split_rooms

        fault = split_rooms()
    except ImportError as error:
        fault = f"{error}: another package named sim stands before ours on the import path; take it off PYTHONPATH"
    if fault:
        print(f"error: {fault}", file=sys.stderr)
        sys.exit(2)
    from cli.app import app
    from cli.output import complain
    from sim.peers import hush, linger, rank

    if rank():
        hush()
    try:
        app(prog_name="sim")
    except SystemExit as end:
        if rank() and end.code:
            linger()
        raise
    except Exception:
        if rank():
            linger()
        traceback.print_exc()
        line = "this is a fault of ours, not of your input; please report it with the lines above"
        print(f"error: {line}", file=sys.stderr)
        complain(line, "--json" in sys.argv)
        sys.exit(FAULT)


if __name__ == "__main__":
    main()
