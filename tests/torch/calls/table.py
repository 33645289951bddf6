"""The tables of README.md, here, that say what torch's calls and settings do with Firn: makes every
call with both allocators and writes them between its marks.

    python table.py [--build BUILD] [--print]
"""

import argparse
import json
import pathlib
import subprocess

import compare
from test_answers import DIFFERENT

README = pathlib.Path(__file__).with_name("README.md")
CALLS, SETTINGS = "calls", "settings"
MOST = 60  # letters of an answer


def words(name):
    return name[len("call_"):].replace("_", " ")


def shown(said):
    """An answer, as much of it as is looked at in a table."""
    if "error" in said:
        return "fails: " + said["error"][:MOST]
    text = json.dumps(said["answer"]).replace("|", "\\|")
    return "`%s`" % (text if len(text) <= MOST else text[:MOST - 2] + "..")


def row(name, native, firn):
    if compare.agrees(native, firn):
        return "| %s | %s | the same |" % (words(name), shown(native))
    return "| %s | %s | %s: %s |" % (words(name), shown(native), shown(firn), DIFFERENT[name])


def calls_table(settings):
    lines = []
    total = alike = 0
    for path in compare.files():
        lines += ["", "**%s**" % path.stem[:-len("_calls")], "", "| call | native | Firn |",
                  "|---|---|---|"]
        for name, native, firn in compare.compare(path, settings):
            lines.append(row(name, native, firn))
            total += 1
            alike += compare.agrees(native, firn)
    return "\n".join(["%d of %d calls are answered alike." % (alike, total)] + lines) + "\n"


def settings_table(settings):
    code = ("import torch\n"
            "from firn import _libraries\n"
            "print(_libraries.read_text(_libraries.load_plugin().firn_torch_settings), end='')")
    return subprocess.run([compare.PYTHON, "-c", code], env=settings, capture_output=True,
                          text=True, check=True).stdout


def marks(name):
    return "<!-- %s: tests/torch/calls/table.py -->\n" % name, "<!-- end of %s -->" % name


def between(text, name):
    """What README holds between the marks."""
    begin, end = marks(name)
    return text.split(begin)[1].split(end)[0]


def put(text, name, table):
    begin, end = marks(name)
    return text.replace(begin + between(text, name) + end, begin + table + end)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build")
    parser.add_argument("--print", action="store_true")
    options = parser.parse_args()
    environment = compare.environment(options.build)
    tables = {SETTINGS: settings_table(environment), CALLS: calls_table(environment)}
    if options.print:
        print(*tables.values(), sep="\n")
        return
    text = README.read_text(encoding="utf-8")
    for name, table in tables.items():
        text = put(text, name, table)
    pathlib.Path(README).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
