#!/usr/bin/env python3
"""What an allocator's objects are laid out by, in one word: hash_headers.py OUT.h COMPILER HEADER...
"""

import hashlib
import sys


def main(out, compiler, headers):
    digest = hashlib.sha256(compiler.encode())
    for header in headers:
        with open(header, "rb") as file:
            digest.update(file.read())
    with open(out, "w", encoding="ascii") as file:
        file.write('#pragma once\n#define FIRN_RUNTIME_BUILD "%s"\n' % digest.hexdigest()[:32])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
