"""At the interpreter's start, before torch is loaded: takes Firn's words out of
PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF, which torch would refuse, and keeps them in
FIRN_CONF for this process and its children. Where Firn is wanted, its library in front of the
driver is loaded when torch is about to be imported: libraries of torch's open the driver then.

Imported by the line in firn.pth, and only where one of the variables mentions Firn. Imports nothing
but os and sys.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, MutableMapping

VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
KEPT = "FIRN_CONF"


def split_words(conf: str) -> list[str]:
    """The words of `conf`; torch's may hold commas in brackets."""
    words, depth, begin = [], 0, 0
    for i, letter in enumerate(conf + ","):
        depth = max(depth + (letter == "[") - (letter == "]"), 0)
        if letter == "," and (depth == 0 or i == len(conf)):
            words.append(conf[begin:i].strip(" \t\r\n"))
            begin = i + 1
    return [word for word in words if word]


def split_conf(conf: str) -> tuple[bool, str, str]:
    """(wanted, Firn's words, the rest): as split_conf() of allocator/runtime/config.h."""
    wanted = False
    firn: list[str] = []
    rest: list[str] = []
    for word in split_words(conf):
        key, _, value = (part.strip(" \t\r\n") for part in word.partition(":"))
        if key == "backend" and value == "firn":
            wanted = True
        else:
            (firn if key.startswith("firn_") else rest).append(word)
    return wanted, ",".join(firn), ",".join(rest)


def start(environ: MutableMapping[str, str] = os.environ) -> None:
    """Acts where backend:firn is among the words. Elsewhere nothing is changed: torch then refuses
    firn_* by name, and does not ignore them."""
    take_words(environ)
    if environ is os.environ and wanted() is not None and not preloaded():
        _BeforeTorch.install()


def take_words(environ: MutableMapping[str, str], asked: bool = False) -> None:
    """Moves Firn's words to FIRN_CONF. `asked`: as if backend:firn was among them."""
    split = {name: split_conf(environ[name]) for name in VARIABLES if environ.get(name)}
    if not asked and not any(wanted for wanted, _, _ in split.values()):
        return
    kept = ["backend:firn"]
    for name, (_, firn, rest) in split.items():
        if firn:
            kept.append(firn)
        # Firn itself refuses another backend beside its own, by name.
        others = [word for word in split_words(rest) if word.partition(":")[0].strip() == "backend"]
        kept += others
        rest = ",".join(word for word in split_words(rest) if word not in others)
        if rest:
            environ[name] = rest
        else:
            del environ[name]
    environ[KEPT] = ",".join(kept)


def wanted(environ: Mapping[str, str] = os.environ) -> str | None:
    """Firn's words, or None where Firn was not asked for."""
    conf = environ.get(KEPT, "")
    return conf if split_conf(conf)[0] else None


def knob(name: str, conf: str, environ: Mapping[str, str] = os.environ) -> str:
    """The text of a knob of Firn's in `conf`, or else in the environment; "" where it is not set.
    (For callers that cannot ask Firn itself.)"""
    values = [word.partition(":")[2].strip() for word in split_words(conf)
              if word.partition(":")[0].strip() == "firn_" + name]
    return values[-1] if values else environ.get("FIRN_" + name.upper(), "")


def preloaded(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the library in front of the driver is in this process by LD_PRELOAD."""
    return "libfirn_preload.so" in environ.get("LD_PRELOAD", "")


def other_backend(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the user has named a backend of torch's own."""
    return any(word.partition(":")[0].strip() == "backend" for name in VARIABLES
               for word in split_words(environ.get(name, "")))


# Setting one of these shows that Firn is wanted.
TELLING = ("FIRN_BUDGET", "FIRN_DIR", "FIRN_HOST")


def nearly_asked(environ: Mapping[str, str] = os.environ) -> str:
    """If Firn was meant, as it seems, but not asked for: what was found, and how to ask; or ""."""
    for name in VARIABLES:
        for word in split_words(environ.get(name, "")):
            key, _, value = (part.strip(" \t\r\n") for part in word.partition(":"))
            if key.lower() != "backend" or not value.lower().startswith("firn"):
                continue
            if len(value.split()) > 1:
                return f'{name}: "{word}": separate words by commas: {",".join(word.split())}'
            return f'{name}: "{word}": write backend:firn to use Firn'
    if other_backend(environ):
        return ""
    for name in TELLING:
        if environ.get(name):
            return (f"{name} is set, but has no effect because Firn is off: set "
                    "PYTORCH_CUDA_ALLOC_CONF=backend:firn, or use firn run")
    return ""


class _BeforeTorch:
    """The first finder of modules, until torch is looked for: finds nothing itself."""

    @classmethod
    def install(cls) -> None:
        if "torch" not in sys.modules and not any(each is cls for each in sys.meta_path):
            sys.meta_path.insert(0, cls)

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> None:
        if name == "torch":
            sys.meta_path.remove(cls)
            from firn import _libraries
            _libraries.stand_in_front()
