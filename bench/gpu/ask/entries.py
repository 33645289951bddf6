"""Whether cuGetProcAddress answers the addresses that dlsym does: Firn's library in front of the
driver recognises an entry by its address (allocator/preload/doors.h)."""

import ctypes
import pathlib
import re

PRELOAD = pathlib.Path(__file__).resolve().parents[3] / "allocator/preload"
VERSIONS = (2000, 4000, 7000, 9000, 10000, 11000, 11030, 11070, 12000, 12030, 12080, 13000)
# Before, many entries had another form (cuMemAlloc of 32 bits), which nobody asks for any more.
OLDEST_IN_USE = 4000
FLAGS = {0: "default", 1: "legacy", 2: "per-thread"}
SUFFIX = re.compile(r"(_v\d+)?(_pt[sd][sz])?$")


class Where(ctypes.Structure):
    """Dl_info."""
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p),
                ("address", ctypes.c_void_p)]


def handled():
    return re.findall(r"^[HL]\((\w+),", (PRELOAD / "handled.inc").read_text(), re.M)


def named():
    """What Firn knows that a driver may export."""
    return sorted({line.split()[0] for line in (PRELOAD / "names.txt").read_text().splitlines()
                   if line[:2] == "cu"} | set(handled()))


def address_of(gpu, name):
    return ctypes.cast(getattr(gpu.lib, name), ctypes.c_void_p).value if gpu.has(name) else None


def found_by_loader(address):
    where = Where()
    if not ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(where)):
        return "?"
    name = (where.name or b"no name").decode()
    return f"{name}+{address - (where.address or where.base):#x} of " + \
        pathlib.Path((where.file or b"?").decode()).name


def identity(gpu):
    """For all handled entries, by base name: each version, each way to ask for the null stream."""
    names = {}
    for name in named():
        address = address_of(gpu, name)
        if address:
            names.setdefault(address, []).append(name)
    wanted, version = handled(), ctypes.c_int()
    gpu.need("cuDriverGetVersion", ctypes.byref(version))
    others, answers, unseen, count = [], {}, [], 0
    for base in sorted({SUFFIX.sub("", name) for name in wanted}):
        told = set()
        for asked in [each for each in VERSIONS if each < version.value] + [version.value]:
            for flags, word in FLAGS.items():
                entry, status = ctypes.c_void_p(), ctypes.c_int(-1)
                result = gpu.call("cuGetProcAddress_v2", ctypes.c_char_p(base.encode()),
                                  ctypes.byref(entry), asked, flags, ctypes.byref(status))
                count += 1
                if result or not entry.value:
                    told.add(f"none ({gpu.named(result)}, status {status.value})")
                elif entry.value in names:
                    told.add(" = ".join(names[entry.value]))
                    if asked >= OLDEST_IN_USE and not set(names[entry.value]) & set(wanted):
                        unseen.append([base, asked, word, names[entry.value]])
                else:
                    others.append([base, asked, word, found_by_loader(entry.value)])
        answers[base] = sorted(told)
    note = gpu.answers.note
    note("asked", count)
    note("another address than dlsym's", others)
    note("an entry that Firn lets past", unseen)
    note("not exported", [name for name in wanted if not address_of(gpu, name)])
    note("several names of one address", [each for each in names.values()
                                          if len(each) > 1 and set(each) & set(wanted)])
    note("answers", answers)
