"""What the calls share. A call is a function whose name begins with "call_"; what it returns is the
same with the native allocator and with Firn's, or something is wrong."""

import gc
import os
import subprocess
import sys

import torch

MIB = 1 << 20
STATE = os.environ.get("FIRN_CALLS_STATE", "")  # what of the memory is spilled: "", "half", "all"


def alone(conf="", status=0, **environment):
    """Marks a call that needs a process of its own, with these settings."""
    def mark(function):
        function.alone = {"conf": conf, "environment": environment, "status": status}
        return function
    return mark


def is_firn():
    return torch.cuda.get_allocator_backend() == "firn"


def settle():
    """As after the start: no history, nothing cached, statistics at their beginning."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.memory._record_memory_history(enabled=None)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()


def empty(size, **options):
    """So many bytes of device memory, without a kernel; where memory is to be spilled, with one: it
    leaves once an operator was seen to use it."""
    made = torch.empty(size, dtype=torch.uint8, device="cuda", **options)
    return made.zero_() if STATE else made


class SpillHalf(torch.overrides.TorchFunctionMode):
    """After every call of torch's, every second block is spilled."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        answer = function(*args, **(kwargs or {}))
        from firn import _autoload
        _autoload.plugin().firn_torch_spill_half()
        return answer


def in_state(call):
    """The call's answer with memory in the state that is asked for."""
    if STATE != "half":
        return call()  # "all": by firn_test_adversarial
    with SpillHalf():
        return call()


def free_while_used(size):
    """Frees so many bytes that another stream uses for a while yet."""
    side = torch.cuda.Stream()
    x = empty(size)
    with torch.cuda.stream(side):
        torch.cuda._sleep(300_000_000)
    x.record_stream(side)


def refusal(function, *arguments, **options):
    """[the error's type, what it says up to where allocators differ], or None."""
    try:
        function(*arguments, **options)
    except Exception as error:
        return type(error).__name__
    return None


def statistics(*names):
    found = torch.cuda.memory_stats()
    return {name: found[name] for name in names}


def python(code, **environment):
    """The status and the output of another process with the same allocator."""
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **environment},
                          capture_output=True, text=True, timeout=120)
    return [done.returncode, done.stdout.strip(), done.stderr.strip()[-400:]]
