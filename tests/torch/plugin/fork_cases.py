"""Runs many short pieces of Python in few processes: torch is imported once, and each piece runs in
a fork of that process, which then starts CUDA (and Firn) for itself.

    python fork_cases.py FILE.json    {"before": code, "after": code, "cases": {name: code}}

prints a line of JSON per case: {"name", "status", "output", "errors"}.
"""

import json
import os
import signal
import sys
import tempfile
import threading

SECONDS = 240  # a case that takes longer is killed


def run_forked(code):
    """(status, output, errors); a negative status is the signal that ended the case."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(errors.fileno(), 2)
            status = 1
            try:
                exec(compile(code, "<case>", "exec"), {"__name__": "__main__"})
                status = 0
            except BaseException:
                import traceback
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        late = threading.Timer(SECONDS, os.kill, (child, signal.SIGKILL))
        late.start()
        _, ended = os.waitpid(child, 0)
        late.cancel()
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
        return os.waitstatus_to_exitcode(ended), *texts


def main():
    with open(sys.argv[1]) as file:
        wanted = json.load(file)
    # Once, for all. Nearly everything imports the latter at its first use: that takes as long as
    # most cases do.
    import torch
    import torch._dynamo  # noqa: F401
    assert not torch.cuda.is_initialized()
    for name, code in wanted["cases"].items():
        status, output, errors = run_forked(wanted["before"] + code + wanted["after"])
        print(json.dumps({"name": name, "status": status, "output": output, "errors": errors}),
              flush=True)


if __name__ == "__main__":
    main()
