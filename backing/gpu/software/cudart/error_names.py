"""The names of cudaError_t, as the CUDA headers at hand have them.

Usage: error_names.py DRIVER_TYPES_H OUTPUT
Writes a line FIRN_ERROR(name) for each value of enum cudaError; of two names with one value, the
first. Ends with a message where the header has no such enum.
"""

import re
import sys


def error_names(header):
    """[name], in the header's order."""
    without_comments = re.sub(r"/\*.*?\*/|//[^\n]*", "", header, flags=re.S)
    body = re.search(r"\benum\s+(?:__device_builtin__\s+)?cudaError\s*\{(.*?)\}", without_comments,
                     re.S)
    if body is None:
        raise ValueError("no enum cudaError")
    names = {}
    for name, value in re.findall(r"(\w+)\s*=\s*(\w+)", body[1]):
        names.setdefault(int(value, 0), name)
    return list(names.values())


def main():
    header, output = sys.argv[1:]
    with open(header, encoding="utf-8", errors="replace") as file:
        try:
            names = error_names(file.read())
        except ValueError as error:
            sys.exit(f"{header}: {error}")
    with open(output, "w", encoding="utf-8") as file:
        file.writelines(f"FIRN_ERROR({name})\n" for name in names)


if __name__ == "__main__":
    main()
