"""Compiles a header once for all files that have another one's flags (GCC):

    precompile.py COMPILE_COMMANDS LIKE HEADER OUT DEPFILE

LIKE: the name of a file in COMPILE_COMMANDS (compile_commands.json), whose compiler and flags are
taken. OUT lies as HEADER.gch, or in a folder of that name, where GCC looks for the one that fits.
DEPFILE: made, for ninja: the headers, and COMPILE_COMMANDS for their flags.
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


def flags_of(words):
    """What decides whether a precompiled header fits, and where headers are."""
    kept = []
    for word, following in zip(words, [*words[1:], ""]):
        if word == "-isystem":
            kept += [word, following]
        elif re.match(r"-(f|O|g|D|I|m|std|W|pthread|isystem.)", word):
            kept.append(word)
    return kept


def precompile(entry, header, out, *more):
    words = shlex.split(entry["command"])
    compiler = [word for word in words[:2]
                if not word.startswith("-") and os.path.basename(word) not in ("ccache", "sccache")]
    header, out = os.path.abspath(header), os.path.abspath(out)
    part = os.path.join(os.path.dirname(header), os.path.basename(out) + ".part")
    subprocess.run([*compiler, *flags_of(words), "-w", "-x", "c++-header", header, "-o", part, *more],
                   cwd=entry["directory"], check=True)
    os.replace(part, out)  # (nothing half is found where GCC looks)


if __name__ == "__main__":
    file, like, header_, out_, depfile = sys.argv[1:]
    precompile(commands_of(file)[like], header_, out_, "-MD", "-MF", os.path.abspath(depfile),
               "-MT", out_)
    with open(depfile, encoding="utf-8") as made:
        target, headers = made.read().split(":", 1)
    with open(depfile, "w", encoding="utf-8") as made:
        made.write(f"{target}: {file.replace(' ', chr(92) + ' ')}{headers}")
