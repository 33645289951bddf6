"""At the end of `import torch` (entry point group torch.backends): makes Firn the CUDA allocator
where it was asked for. Where it cannot be, CUDA does not start: RuntimeError says why, from
whatever starts it; under `firn run` (FIRN_STRICT) the process ends with status 2 and that line.
With firn_fallback:native a warning says it, and torch's own allocator stays.
"""

from __future__ import annotations

import ctypes
import os
import sys
import warnings

from firn import _addresses, _libraries, _startup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_plugin: ctypes.CDLL | None = None  # libfirn_torch.so, once it is the allocator
_doors: Any = None  # of firn.relay, once they are open
_tried = False  # once is enough, however many copies of the entry point are installed


def plugin() -> ctypes.CDLL | None:
    return _plugin


def _complain(words: str) -> None:
    if os.environ.get("FIRN_STRICT") == "1":
        print("firn: " + words, file=sys.stderr, flush=True)
        raise SystemExit(2)
    warnings.warn("firn: " + words, RuntimeWarning, stacklevel=3)


def _refuse(words: str, conf: str) -> None:
    """Keeps CUDA from starting without Firn, unless the user has allowed torch's own allocator."""
    if _startup.knob("fallback", conf) == "native":
        warnings.warn("firn: %s: the native allocator stays, nothing will spill" % words,
                      RuntimeWarning, stacklevel=3)
        return
    words += " (firn_fallback:native goes on without Firn)"
    if os.environ.get("FIRN_STRICT") == "1":
        _complain(words)
    import torch

    def refuse() -> None:
        raise RuntimeError("firn: " + words)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        refuse()
    torch.cuda._lazy_init = refuse  # everything that starts CUDA calls it by this name


def _start_software_device() -> str:
    library = _libraries.load_for_torch("libfirn_torch_ops.so")
    library.firn_torch_ops_error.restype = ctypes.c_char_p
    if library.firn_torch_ops_start() != 0:
        return "FIRN_DEVICE=software: %s" % library.firn_torch_ops_error().decode(errors="replace")
    return ""


def _install(conf: str) -> str:
    global _plugin
    library = _libraries.load_plugin()
    error = ctypes.create_string_buffer(1024)
    status = library.firn_torch_install(conf.encode(), error, len(error))
    words = error.value.decode(errors="replace").splitlines()[0] if error.value else ""
    if status != 2:
        _plugin = library
        # If the library in front of the driver was asked before this one was there, it has set this
        # itself, unknown to os.environ.
        if "PYTORCH_NO_CUDA_MEMORY_CACHING" not in os.environ:
            os.unsetenv("PYTORCH_NO_CUDA_MEMORY_CACHING")
        _addresses.install(library)
        # A malformed setting is reported when CUDA starts; at once under `firn run`.
        return words if os.environ.get("FIRN_STRICT") == "1" else ""
    if "already initialized" in words:
        words = ("CUDA was started before Firn could be installed (by a module that import torch "
                 "loads)")
    return words


def load() -> None:
    """The entry point."""
    _make_allocator()
    _relay_by_itself()


def _relay_by_itself() -> None:
    """FIRN_RELAY and firn_relay: whichever allocator there is (firn/relay/doors.py)."""
    global _doors
    text = _startup.knob("relay", _startup.wanted() or "").strip()
    if not text or _doors is not None:
        return
    if not (text.isascii() and text.isdigit() and int(text) <= 65_536):
        _complain('FIRN_RELAY: "%s" is not a whole number from 0 to 65536' % text)
    elif int(text) > 0:
        try:
            from firn.relay.doors import Doors
            _doors = Doors(int(text))
        except Exception as error:  # (import torch goes on)
            _complain("relay: off: %s: %s" % (type(error).__name__, error))


def _make_allocator() -> None:
    global _tried
    # In case the start-up line did not run (python -S, a package on PYTHONPATH, a torch imported by
    # an earlier start-up line): torch reads its settings when CUDA starts, and not before.
    _startup.start()
    conf = _startup.wanted()
    # LD_PRELOAD=libfirn_preload.so alone asks for Firn too: this is its better way in.
    by_preload = conf is None and _startup.preloaded() and not _startup.other_backend()
    if by_preload:
        _startup.take_words(os.environ, asked=True)
        conf = _startup.wanted()
    software = os.environ.get("FIRN_DEVICE") == "software"
    if _tried:
        return
    if conf is None:
        meant = _startup.nearly_asked()
        if meant:
            _tried = not software
            _complain(meant)
    if conf is None and not software:
        return
    _tried = True
    try:
        words = _libraries.misfit()
        if not words and software:
            words = _start_software_device()
        if not words and conf is not None:
            words = _install(conf)
    except OSError as error:
        words = str(error)
    if by_preload and _plugin is None:
        # Firn stays below torch's own allocator, and sees its blocks if that keeps none back.
        os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        words += ("; PYTORCH_NO_CUDA_MEMORY_CACHING=1 is set, so that PyTorch allocates each "
                  "block separately")
    elif by_preload:
        print("firn: preloaded: PyTorch uses Firn's allocator (backend:firn)", file=sys.stderr,
              flush=True)
    if words and conf is not None and _plugin is None and not by_preload:
        _refuse(words, conf)
    elif words:
        _complain(words)
