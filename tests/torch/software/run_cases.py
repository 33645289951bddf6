"""Runs the case_* functions of one file on the software device, each named on the command line or
all of them, and prints a line of JSON for each: {"case":..., "error": null or text, "seconds":...}.

    python run_cases.py FILE [CASE...]
"""

import importlib.util
import json
import os
import sys
import time
import traceback

import software_device


def main():
    software_device.start()
    path = sys.argv[1]
    sys.path.insert(0, os.path.dirname(path))
    spec = importlib.util.spec_from_file_location("cases_under_test", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    wanted = sys.argv[2:] or [name for name in vars(module) if name.startswith("case_")]
    for name in wanted:
        begin = time.monotonic()
        error = None
        try:
            getattr(module, name)()
        except BaseException:
            error = traceback.format_exc()
        print("\n@" + json.dumps({"case": name, "error": error,
                                  "seconds": round(time.monotonic() - begin, 3)}), flush=True)


if __name__ == "__main__":
    main()
