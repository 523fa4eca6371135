"""A test's program in a process that is forked with torch imported: `python -m uncomputed.story PROGRAM ARGUMENT…`.

It may ask a device only then: a process that had asked could not be forked.
"""

import sys

if __name__ == "__main__":
    program = sys.argv.pop(1)
    exec(compile(program, "a story", "exec"), {"__name__": "__main__"})
