"""Small questions that demo.sh asks about sizes and results.

    result.py peak FILE           the most GPU memory that FILE's run had allocated, in bytes
    result.py fraction FILE SIZE  SIZE as a part of the memory of the GPU that FILE's run was on
    result.py show SIZE           SIZE for people
"""

import json
import pathlib
import re
import sys

UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
         "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def size_bytes(word):
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]*)", word)
    if not match or match[2] not in UNITS or float(match[1]) == 0:
        raise ValueError(f"{word!r} is not a size such as 512MiB")
    return int(float(match[1]) * UNITS[match[2]])


def show(size):
    return f"{size / (1 << 20):.0f} MiB" if size < (1 << 30) else f"{size / (1 << 30):.2f} GiB"


def main():
    question, *words = sys.argv[1:]
    if question == "show":
        return show(size_bytes(words[0]))
    result = json.loads(pathlib.Path(words[0]).read_text())
    if question == "peak":
        return result["peak_bytes"]
    if question == "fraction":
        return f"{size_bytes(words[1]) / result['total_bytes']:.9f}"
    raise ValueError(f"unknown question {question!r}")


if __name__ == "__main__":
    try:
        print(main())
    except ValueError as error:
        sys.exit(f"demo: {error}")
