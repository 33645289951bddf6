#!/usr/bin/env python3
"""Firn in Python without installing it: prints the variables that make a build folder's Firn the
one that Python finds, for `export $(python3 pytorch_plugin/dev_site.py BUILD)`.

Makes BUILD/site, where the package (a link to the sources), its metadata (the entry point that
torch calls) and a sitecustomize module in the place of firn.pth are.
"""

import os
import sys

METADATA = "Metadata-Version: 2.1\nName: firn\nVersion: 0.1.0\n"
ENTRY_POINTS = ("[torch.backends]\nfirn = firn._autoload:load\n"
                "[torch_dynamo_backends]\nfirn = firn.compiled:backend\n")
SITECUSTOMIZE = """import os, site
with open(%r) as line:
    exec(line.read())
"""


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def make_site(build):
    """The variables, as a dictionary."""
    build = os.path.abspath(build)
    package = os.path.join(os.path.dirname(os.path.abspath(__file__)), "firn")
    site = os.path.join(build, "site")
    write(os.path.join(site, "firn_dev-0.1.0.dist-info", "METADATA"), METADATA)
    write(os.path.join(site, "firn_dev-0.1.0.dist-info", "entry_points.txt"), ENTRY_POINTS)
    write(os.path.join(site, "sitecustomize.py"),
          SITECUSTOMIZE % os.path.join(package, "firn.pth"))
    link = os.path.join(site, "firn")
    if not os.path.islink(link):
        os.symlink(package, link)
    return {"FIRN_BUILD": build, "PYTHONPATH": site}


if __name__ == "__main__":
    if len(sys.argv) != 2 or not os.path.isdir(sys.argv[1]):
        sys.exit("usage: dev_site.py BUILD")
    print("\n".join("%s=%s" % pair for pair in make_site(sys.argv[1]).items()))
