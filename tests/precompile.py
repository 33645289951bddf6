"""Compiles a header once for all files that have another one's flags (GCC):

    precompile.py COMPILE_COMMANDS LIKE HEADER OUT

LIKE: the name of a file in COMPILE_COMMANDS (compile_commands.json), whose compiler and flags are
taken. OUT lies as HEADER.gch, or in a folder of that name, where GCC looks for the one that fits.
"""

import json
import os
import re
import shlex
import subprocess
import sys


def commands_of(path):
    """{a file's name: its entry}"""
    with open(path, encoding="utf-8") as commands:
        return {os.path.basename(entry["file"]): entry for entry in json.load(commands)}


def precompile(entry, header, out):
    words = shlex.split(entry["command"])
    kept = [word for word in words if re.match(r"-(f|O|g|D|std|W|pthread)", word)]
    compiler = [word for word in words[:2] if not word.startswith("-") and "ccache" not in word]
    part = os.path.join(os.path.dirname(header), os.path.basename(out) + ".part")
    subprocess.run([*compiler, *kept, "-w", "-x", "c++-header", header, "-o", part], check=True)
    os.replace(part, out)  # (nothing half is found where GCC looks)


if __name__ == "__main__":
    file, like, header_, out_ = sys.argv[1:]
    precompile(commands_of(file)[like], header_, out_)
