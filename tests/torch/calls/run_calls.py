"""Makes the calls of one file, all that need no process of their own or those named, and prints a
line of JSON for each: {"call":..., "answer":...} or {"call":..., "error":...}.

    python run_calls.py FILE [CALL...]
    python run_calls.py --list FILE...  {FILE: {"call": null, or what the call's process needs}}
"""

import importlib.util
import json
import os
import sys
import traceback


def load(path):
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec = importlib.util.spec_from_file_location(os.path.basename(path)[:-3], path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: value for name, value in vars(module).items() if name.startswith("call_")}


def say(**words):
    print("\n@" + json.dumps(words), flush=True)


def main(words):
    if words[0] == "--list":
        print(json.dumps({file: {name: getattr(call, "alone", None)
                                 for name, call in load(file).items()} for file in words[1:]}))
        return
    calls = load(words[0])
    import _calls
    for name in words[1:]:
        say(begin=name)
        try:
            if not hasattr(calls[name], "alone"):
                _calls.settle()
            say(call=name, answer=_calls.in_state(calls[name]))
        except BaseException as error:
            frames = traceback.extract_tb(error.__traceback__)
            line = next((f.lineno for f in reversed(frames) if f.filename == words[0]), 0)
            if os.environ.get("FIRN_TEST_TRACEBACK"):
                traceback.print_exc()
            say(call=name, error="%s at line %d: %s" % (type(error).__name__, line,
                                                        str(error).split("\n")[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
