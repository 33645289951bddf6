"""Makes a C++ header of text files: embed.py OUT NAME=FILE[,FILE...]..., each NAME a constant that
holds its files one after the other."""

import pathlib
import sys

PIECE = 8000  # compilers need not take longer literals


def literal(text):
    pieces = [text[at:at + PIECE] for at in range(0, len(text), PIECE)] or [""]
    return "\n".join('R"firn(%s)firn"' % piece for piece in pieces)


def main(out, *parts):
    lines = ["// Made by embed.py.", "#pragma once", "", "namespace firn::report {", ""]
    for part in parts:
        name, files = part.split("=", 1)
        text = "\n".join(pathlib.Path(file).read_text(encoding="utf-8")
                         for file in files.split(","))
        assert ')firn"' not in text
        lines.append("inline constexpr char %s[] =\n%s;\n" % (name, literal(text)))
    lines.append("}  // namespace firn::report")
    pathlib.Path(out).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
