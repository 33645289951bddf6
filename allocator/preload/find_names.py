#!/usr/bin/env python3
"""The driver's exported names, for the stand-in's table of stubs: those of names.txt, those of the
toolkit's stub library where there is one, and the software GPU's own, which programs made for it
look up, as lines N(index, name).

find_names.py NAMES.txt HANDLED.inc SOFTWARE_GPU.h OUT.inc [STUB]...
"""

import re
import subprocess
import sys


def exported(library):
    """The symbols that a shared library defines; none where nm cannot read it."""
    try:
        listing = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True,
                                 text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return set()
    words = (line.split() for line in listing.splitlines())
    return {each[2].partition("@")[0] for each in words if len(each) == 3 and each[1] in "TW"}


def main(names_file, handled_file, software_file, out_file, stubs):
    with open(names_file, encoding="ascii") as file:
        names = set(file.read().split())
    for stub in stubs:
        names |= exported(stub)
    names = {name for name in names if re.fullmatch(r"cu(dbg)?[A-Z]\w*", name)}
    with open(software_file, encoding="utf-8") as file:
        names |= set(re.findall(r"\b(firnGpu[A-Z]\w*)\(", file.read()))
    names = sorted(names)
    with open(handled_file, encoding="ascii") as file:
        handled = re.findall(r"^[HL]\((\w+)", file.read(), re.M)
    unknown = sorted(set(handled) - set(names))
    if unknown:
        sys.exit("%s: no driver exports %s" % (handled_file, ", ".join(unknown)))
    with open(out_file, "w", encoding="ascii") as out:
        for index, name in enumerate(names):
            out.write("N(%d, %s)\n" % (index, name))
        out.write("#define FIRN_NAMES %d\n" % len(names))


if __name__ == "__main__":
    main(*sys.argv[1:5], sys.argv[5:])
